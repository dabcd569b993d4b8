// SPDX-License-Identifier: Apache-2.0
// Discovers the accelerators of this host: files, then NVML through ivy-probe, then masks. No probe
// is started unless the files show NVIDIA's driver or the layout of the cores is requested. Thread:
// the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>

#include "agent/devices/device_facts.h"
#include "agent/devices/device_files.h"
#include "agent/devices/probe_process.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class Discovery {
 public:
  // Receives facts in which only the fields that set_device_facts() sets are filled.
  using Done = std::function<void(const HostFacts&)>;

  // probe_program: path of ivy-probe, which may not exist. root: see device_files.h.
  Discovery(boost::asio::io_context& loop, std::string probe_program,
            std::string root = device_root());

  // Calls `done` once: immediately if no probe is needed, otherwise within kProbeLimit. Another
  // call before then cancels the first one, whose `done` is never called.
  void describe(const Hello& hello, Done done);

 private:
  const std::string probe_program_;
  const std::string root_;
  ProbeProcess probe_;
};

}  // namespace ivy
