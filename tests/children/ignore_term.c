// SPDX-License-Identifier: Apache-2.0
// Ignores the signals that ask it to exit, prints "ready
// " and runs until it is killed.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
  signal(SIGTERM, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
