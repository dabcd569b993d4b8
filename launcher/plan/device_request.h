// What hosts are asked about accelerators and cores. Pure; thread: any.
#pragma once

#include "launcher/options/options.h"
#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Masks of -x, which count on every host as if they were set there; and the layout of the cores,
// where workers are to be bound by it. An -x that is wrong is refused elsewhere.
void add_device_request(const Options& options, const Environment& caller, Hello& hello);

}  // namespace ivy
