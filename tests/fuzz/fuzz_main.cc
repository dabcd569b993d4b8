// SPDX-License-Identifier: Apache-2.0
// Runs one target with libFuzzer.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ivy::fuzz::IVY_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
