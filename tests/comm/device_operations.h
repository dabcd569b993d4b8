// SPDX-License-Identifier: Apache-2.0
// Calls every collective twice with the same data, on the host and on a device. The CPU's
// collectives have their own tests (matrix_test.cc); here they provide the expected results.
#pragma once

#include <string>
#include <vector>

#include "comm/contract/ivycomm.h"
#include "tests/comm/device.h"

namespace ivy::comm::test {

struct DeviceCase {
  int dtype = IVY_F32;
  int op = IVY_SUM;
  std::size_t count = 0;
};

// Returns the elements of a rank: small integers, so that no order of addition rounds.
std::vector<char> values_of(int dtype, std::size_t count, int rank);

// Calls every collective and compares the results. `how` is passed to each call and may be null.
// All ranks must call it.
void compare_with_host(ivy_comm* comm, Device& device, const DeviceCase& one, const ivy_call* how);

// Returns types and operations for every path: native in NCCL, under another name in NCCL, and
// staged.
std::vector<DeviceCase> device_cases(std::size_t count);
// Returns averages that NCCL computes itself. It rounds at other points than libivycomm: the
// results are equal for 1, 2, 4, ... ranks.
std::vector<DeviceCase> average_cases(std::size_t count);

}  // namespace ivy::comm::test
