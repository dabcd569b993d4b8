// SPDX-License-Identifier: Apache-2.0
// exit_code N: exits with code N.
#include <stdlib.h>

int main(int argc, char** argv) { return argc == 2 ? atoi(argv[1]) : 2; }
