// SPDX-License-Identifier: Apache-2.0
// fork_many N: N processes that ignore SIGTERM, a parent and its children. Prints "ready
// " when all are running.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  signal(SIGTERM, SIG_IGN);
  for (int left = atoi(argv[1]); left > 1; --left) {
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      for (;;) pause();
    }
  }
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
