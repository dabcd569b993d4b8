// SPDX-License-Identifier: Apache-2.0
// leave_main_thread [ignore] [grandchild]: the main thread exits and another thread runs forever,
// so that /proc shows a running process as a zombie. With "ignore" it ignores SIGTERM. With
// "grandchild" an orphan in a separate session does this instead, and the process exits with 0.
// Prints "PID
// " of the process that keeps running.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void* go_on(void* main_thread) {
  pthread_join(*(pthread_t*)main_thread, NULL);
  printf("%d\n", getpid());
  fflush(stdout);
  for (;;) pause();
  return NULL;
}

int main(int argc, char** argv) {
  static pthread_t main_thread;
  pthread_t other;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "ignore") == 0) signal(SIGTERM, SIG_IGN);
    if (strcmp(argv[i], "grandchild") != 0) continue;
    pid_t child = fork();
    if (child != 0) return waitpid(child, NULL, 0) == child ? 0 : 1;
    if (fork() != 0) _exit(0);
    setsid();
  }
  main_thread = pthread_self();
  if (pthread_create(&other, NULL, go_on, &main_thread) != 0) return 1;
  pthread_exit(NULL);
}
