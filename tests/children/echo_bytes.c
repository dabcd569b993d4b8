// SPDX-License-Identifier: Apache-2.0
// Prints its arguments and then its environment, each followed by a zero byte; an empty entry
// separates them.
#include <stdio.h>

extern char** environ;

int main(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) {
    fputs(argv[i], stdout);
    fputc('\0', stdout);
  }
  fputc('\0', stdout);
  for (char** entry = environ; *entry; ++entry) {
    fputs(*entry, stdout);
    fputc('\0', stdout);
  }
  return fflush(stdout) == 0 ? 0 : 1;
}
