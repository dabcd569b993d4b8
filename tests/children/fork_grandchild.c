// SPDX-License-Identifier: Apache-2.0
// fork_grandchild stay|leave: forks twice, so that a grandchild in a separate session, which
// ignores SIGTERM, SIGINT and SIGHUP, loses its parent. Prints "PARENT GRANDCHILD
// ", then keeps running or exits with 0.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void live_on(int report_fd) {
  setsid();
  signal(SIGTERM, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  pid_t self = getpid();
  if (write(report_fd, &self, sizeof self) != sizeof self) _exit(1);
  close(report_fd);
  for (;;) pause();
}

int main(int argc, char** argv) {
  int ends[2];
  if (argc != 2 || pipe(ends) != 0) return 2;
  pid_t child = fork();
  if (child == 0) {
    if (fork() == 0) live_on(ends[1]);
    _exit(0);
  }
  waitpid(child, NULL, 0);
  pid_t grandchild = 0;
  if (read(ends[0], &grandchild, sizeof grandchild) != sizeof grandchild) return 1;
  printf("%d %d\n", getpid(), grandchild);
  fflush(stdout);
  while (strcmp(argv[1], "stay") == 0) pause();
  return 0;
}
