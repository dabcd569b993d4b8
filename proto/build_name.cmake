# SPDX-License-Identifier: Apache-2.0
# Writes a source file with the hash of the given sources: cmake -DSOURCES=a;b -DOUT=f -DVERSION=v -P.
set(all "")
list(SORT SOURCES)
foreach(source IN LISTS SOURCES)
  file(SHA256 ${source} hash)
  string(APPEND all ${hash})
endforeach()
string(SHA256 name "${all}${FLAVOUR}")
string(SUBSTRING ${name} 0 16 name)
file(CONFIGURE OUTPUT ${OUT} CONTENT [[#include "proto/contract/build.h"

namespace ivy {
std::string_view build_name() { return "@name@"; }
std::string_view version() { return "@VERSION@"; }
}  // namespace ivy
]] @ONLY)
