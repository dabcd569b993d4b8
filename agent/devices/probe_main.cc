// SPDX-License-Identifier: Apache-2.0
// ivy-probe: the queries that need libraries of the host. The supervisor starts it for one query
// and reads the answer (probe_answer.h); `watch` runs as long as the job (watch_answer.h). For
// people: `ivy-probe devices cores` shows the devices, `ivy-probe health` their health.
#include <cstdio>
#include <string_view>

#include "agent/devices/hwloc_library.h"
#include "agent/devices/nvml_library.h"
#include "agent/devices/probe_answer.h"
#include "agent/devices/probe_watch.h"
#include "agent/devices/small_files.h"

int main(int argc, char** argv) {
  ivy::ProbeAnswer answer;
  for (int i = 1; i < argc; ++i) {
    const std::string_view query = argv[i];
    if (query == "devices") {
      answer.nvml = ivy::query_nvml();
    } else if (query == "cores") {
      answer.cores = ivy::query_hwloc(ivy::device_root());
    } else if (query == "watch") {
      ivy::run_watch(ivy::device_root());
    } else if (query == "health") {
      std::fputs(ivy::health_text(ivy::device_root()).c_str(), stdout);
      return 0;
    } else {
      std::fprintf(stderr,
                   "ivy-probe is started by ivy-node; usage: ivy-probe [devices] [cores] | watch | "
                   "health\n");
      return 2;
    }
  }
  const std::string text = ivy::probe_text(answer);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}
