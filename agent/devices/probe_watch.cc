// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/probe_watch.h"

#include <unistd.h>

#include <array>
#include <string_view>

#include "agent/devices/fabric_ports.h"
#include "agent/devices/kernel_log.h"
#include "agent/devices/nvml_health.h"
#include "agent/devices/probe_lines.h"
#include "agent/devices/watch_answer.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

class Watch {
 public:
  explicit Watch(const std::string& root) : root_(root), log_(root) {
    nvml_.listen();
    before_ = read();
    print("ready");
  }

  void execute(std::string_view word) {
    if (word == "begin") begin();
    if (word == "look") print_findings();
    if (word == "memory") print_memory();
  }

 private:
  HostHealth read() const { return {nvml_.read_gpus(), read_ports(root_)}; }
  void begin() {
    nvml_.forget_xids();
    log_.skip();
    seen_.clear();
    before_ = read();
  }
  // Reports known facts first: a driver whose device is lost may never answer again.
  void print_findings() {
    for (XidRecord& xid : log_.read_new()) seen_.push_back(std::move(xid));
    std::vector<XidRecord> xids = seen_;
    for (XidRecord& xid : nvml_.xids()) xids.push_back(std::move(xid));
    for (const DeviceFinding& finding : xid_findings(xids, before_.gpus))
      write_all(STDOUT_FILENO, finding_line(finding));
    for (const DeviceFinding& finding : health_changes(before_, read()))
      write_all(STDOUT_FILENO, finding_line(finding));
    print("end");
  }
  void print_memory() const {
    for (const HeldMemory& held : nvml_.read_memory()) write_all(STDOUT_FILENO, held_lines(held));
    print("end");
  }
  void print(std::string_view keyword) const {
    std::string text;
    add_probe_line(text, keyword, {});
    write_all(STDOUT_FILENO, text);
  }

  const std::string root_;
  KernelLog log_;
  NvmlHealth nvml_;
  HostHealth before_;
  std::vector<XidRecord> seen_;  // Codes from the kernel log, which can be read only once.
};

std::string counters_text(const std::vector<FaultCounter>& counters) {
  std::string text;
  for (const FaultCounter& counter : counters)
    text += "  " + counter.many + ": " + std::to_string(counter.value) + "\n";
  return text;
}

}  // namespace

void run_watch(const std::string& root) {
  write_all(STDOUT_FILENO, std::string(kProbeGreeting) + "\n");
  Watch watch(root);
  std::array<char, 256> piece;
  std::string words;
  for (;;) {
    const ssize_t bytes = read(STDIN_FILENO, piece.data(), piece.size());
    // Other threads may be inside the driver, so do not run destructors.
    if (bytes <= 0) _exit(0);
    words.append(piece.data(), static_cast<std::size_t>(bytes));
    for (std::size_t end = words.find('\n'); end != std::string::npos; end = words.find('\n')) {
      watch.execute(std::string_view(words).substr(0, end));
      words.erase(0, end + 1);
    }
  }
}

std::string health_text(const std::string& root) {
  const NvmlHealth nvml;
  std::string text = nvml.error().empty() ? "" : "NVML does not answer: " + nvml.error() + "\n";
  for (const GpuHealth& gpu : nvml.read_gpus()) {
    text += "GPU " + std::to_string(gpu.index) + " at " + gpu.bdf;
    text += gpu.is_lost ? ": lost\n" : "\n";
    text += "  recovery action: " +
            (gpu.recovery_action < 0 ? "not reported by this driver"
                                     : std::to_string(gpu.recovery_action)) +
            "\n" + counters_text(gpu.counters);
  }
  for (const HeldMemory& held : nvml.read_memory()) {
    text +=
        held.device + " " + held.uuid + ": " + std::to_string(held.bytes >> 20) + " MiB in use\n";
    for (const DeviceHolder& holder : held.holders)
      text += "  pid " + std::to_string(holder.pid) + " " + holder.name + ": " +
              std::to_string(holder.bytes >> 20) + " MiB\n";
  }
  for (const PortHealth& port : read_ports(root))
    text += port.name + ": " + port.state + "\n" + counters_text(port.counters);
  text += KernelLog(root).is_readable() ? "The kernel log can be read.\n"
                                        : "The kernel log cannot be read: error codes come "
                                          "from NVML only.\n";
  return text;
}

}  // namespace ivy
