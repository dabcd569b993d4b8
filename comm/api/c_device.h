// SPDX-License-Identifier: Apache-2.0
// Device memory in the C interface: locates a call's buffers and collects what a collective on a
// device needs. Thread: any.
#pragma once

#include <initializer_list>

#include "comm/api/c_interface.h"

namespace ivy::comm::c_interface {

// Location of a call's buffers. `device` is only meaningful if is_device is set.
struct LocatedBuffers {
  bool is_device = false;
  int device = 0;

  nccl::DeviceOperation operation(Collective&& collective, const ivy_call* call) const;
};

// Locates the buffers; queries the driver if the program uses one. Null buffers do not count.
// Returns IVY_INVALID_ARGUMENT if only some of the buffers are on a device.
int find_memory(const ivy_call* call, std::initializer_list<const void*> buffers,
                LocatedBuffers& placed);

}  // namespace ivy::comm::c_interface
