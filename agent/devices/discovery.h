// SPDX-License-Identifier: Apache-2.0
// The accelerators of this host, layer by layer: files, NVML through ivy-probe, masks. A host whose
// files show no accelerator starts no probe, unless the layout of its cores is asked for.
// Thread: the loop's.
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
  // Gets only the fields that set_device_facts fills.
  using Done = std::function<void(const HostFacts&)>;

  // probe_program: ivy-probe; may be absent. root: as in device_files.h.
  Discovery(boost::asio::io_context& loop, std::string probe_program,
            std::string root = device_root());

  // Calls `done` once: at once where no probe is needed, else within kProbeLimit. Another call
  // before that takes the place of the first, whose `done` is not called.
  void describe(const Hello& hello, Done done);

 private:
  const std::string probe_program_;
  const std::string root_;
  ProbeProcess probe_;
};

}  // namespace ivy
