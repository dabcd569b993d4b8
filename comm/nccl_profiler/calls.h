// SPDX-License-Identifier: Apache-2.0
// Converts NCCL's description of an operation to ivyrun's. Pure. Thread: any.
#pragma once

#include <cstdint>

#include "comm/nccl_profiler/profiler_interface.h"
#include "comm/nccl_profiler/track.h"

namespace ivy::nccl_profiler {

Call call_of(const CollectiveV1& collective);
Call call_of(const CollectiveV2& collective);
Call call_of(const CollectiveV3& collective);
Call call_of(const CollectiveV4& collective);
Call call_of(const MessageV1& message);
Call call_of(const MessageV2& message);
Call call_of(const MessageV4& message);

}  // namespace ivy::nccl_profiler
