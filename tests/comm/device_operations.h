// SPDX-License-Identifier: Apache-2.0
// Every collective, called twice with the same data: on the host and on a device. The CPU's
// collectives have tests of their own (matrix_test.cc); here they say what is right.
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

// What every rank has of element `i`: small whole numbers, so that no order of adding rounds.
std::vector<char> values_of(int dtype, std::size_t count, int rank);

// Calls every collective of this rank and compares; `how` is the call's, or null. All ranks call
// it.
void compare_with_host(ivy_comm* comm, Device& device, const DeviceCase& one, const ivy_call* how);

// Types and operations that stand for all ways: NCCL's own, under another name, staged.
std::vector<DeviceCase> device_cases(std::size_t count);
// NCCL's own averages, which round in other places than ours: equal for 1, 2, 4, ... ranks.
std::vector<DeviceCase> average_cases(std::size_t count);

}  // namespace ivy::comm::test
