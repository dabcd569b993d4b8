# SPDX-License-Identifier: Apache-2.0
# cmake -DFROM=FILE -DTO=FILE.inc -P embed_text.cmake: writes a file as a raw string literal of C++, which sources
# include as an expression. Runs no program of the build, so that it works when cross-compiling.
file(READ ${FROM} text)
string(FIND "${text}" ")text\"" at)
if(NOT at EQUAL -1)
  message(FATAL_ERROR "${FROM} contains )text\", which ends its literal")
endif()
file(WRITE ${TO} "R\"text(${text})text\"\n")
