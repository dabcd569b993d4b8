// SPDX-License-Identifier: Apache-2.0
// hold_pipe SECONDS: exits with 0 immediately, but a child keeps the standard descriptors open.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  pid_t child = fork();
  if (child == 0) {
    sleep((unsigned)atoi(argv[1]));
    _exit(0);
  }
  printf("%d\n", child);
  return 0;
}
