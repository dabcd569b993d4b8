// Device memory in the C interface: where the buffers of a call are, and what a collective on a
// device needs to know of it. Thread: any.
#pragma once

#include <initializer_list>

#include "comm/api/c_interface.h"

namespace ivy::comm::c_interface {

// Where a call's buffers are. If is_device is false the rest has no meaning.
struct Placed {
  bool is_device = false;
  int device = 0;

  nccl::DeviceOperation operation(Collective&& collective, const ivy_call* call) const;
};

// Finds out where the buffers are, asking the driver if the program uses one. Null buffers do not
// count. InvalidArgument: some are on a device and some are not.
int find_place(const ivy_call* call, std::initializer_list<const void*> buffers, Placed& placed);

}  // namespace ivy::comm::c_interface
