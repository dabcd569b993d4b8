// SPDX-License-Identifier: Apache-2.0
// crash SIGNAL: is killed by that signal, without a core file.
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  int number = atoi(argv[1]);
  signal(number, SIG_DFL);
  raise(number);
  return 3;  // The signal does not kill processes.
}
