// SPDX-License-Identifier: Apache-2.0
// flood BYTES [stderr]: writes that many bytes in lines of 64 bytes, each with its number.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  FILE* out = argc > 2 && strcmp(argv[2], "stderr") == 0 ? stderr : stdout;
  static char buffer[1 << 16];
  setvbuf(out, buffer, _IOFBF, sizeof buffer);
  long long lines = atoll(argv[1]) / 64;
  for (long long i = 0; i < lines; ++i) fprintf(out, "%063lld\n", i);
  return fflush(out) == 0 ? 0 : 1;
}
