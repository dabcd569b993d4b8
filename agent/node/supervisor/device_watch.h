// SPDX-License-Identifier: Apache-2.0
// Watches the health of this host's devices while the job runs. An ivy-probe process takes a
// reading when the workers start, and after a failure reports the changes
// (agent/devices/watch_answer.h). Before workers are restarted, it reports which processes still
// hold memory of their devices.
//
// Nothing here delays the first start of workers: the process starts half a second later, or before
// a restart. It does not run on hosts that have neither NVIDIA GPUs nor InfiniBand. Thread: the
// supervisor's loop. Lifetime: the arguments of the constructor must outlive it; kills the process.
#pragma once

#include <sys/types.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/devices/watch_answer.h"
#include "agent/node/supervisor/supervisor_context.h"
#include "proto/os/descriptor.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Implemented by Generation. One of the first two functions is called once for each
// await_memory(), unless end() is called first.
class DeviceWatchEvents {
 public:
  // The start that waits for device memory may begin. `rank` is empty for a start of all workers.
  virtual void start_allowed(std::optional<std::uint32_t> rank) = 0;
  // A stop began during the wait.
  virtual void start_given_up(std::optional<std::uint32_t> rank) = 0;
  // Answers settle(): pending device events were sent to the launcher.
  virtual void devices_settled() = 0;

 protected:
  ~DeviceWatchEvents() = default;
};

class DeviceWatch {
 public:
  DeviceWatch(SupervisorContext& context, DeviceWatchEvents& owner);
  ~DeviceWatch() { end(); }
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // Takes the devices from the answer to Hello: whether any of them can be watched, and the memory
  // in use before the job.
  void learn(const HostFacts& devices);
  // The workers of this generation have been started.
  void begin(std::uint32_t generation);
  // A worker has failed, or the workers are being stopped: settle() will query the devices.
  void query_before_report() { must_check_ = true; }
  // Calls devices_settled() after pending device events were sent to the launcher: immediately if
  // there is no probe, else within the time limits of at most two answers, even if a driver hangs.
  void settle();
  // Calls start_allowed() when the memory of the devices with these UUIDs (if empty, of all
  // devices) is free, immediately if that cannot be determined, and at the latest after
  // kDeviceMemoryWait. Notes name the processes that hold the memory. Several starts may wait.
  void await_memory(std::optional<std::uint32_t> rank, std::vector<std::string> devices);
  // Queries the memory in use, if the probe runs; held() returns the answer later.
  void sample();
  // Returns the last answer to sample(); empty if the probe no longer answers.
  const std::vector<HeldMemory>& held() const { return held_; }
  // Call when a stop starts: rejects all waiting starts.
  void give_up();
  // The supervisor has reaped a child; does nothing unless it is the probe.
  void reaped(pid_t pid);
  void end();

 private:
  enum class Request { kNone, kHealth, kMemory };
  // A start that waits for device memory.
  struct Waiting {
    std::optional<std::uint32_t> rank;
    std::vector<std::string> devices;
    std::int64_t since_ns = 0;  // 0 if the user has not been notified yet.
  };
  void launch();
  bool is_running() const { return pid_ != 0; }
  void query(Request request);
  void read_more();
  void take_text();
  void end_request(bool in_time);
  void send_findings(bool in_time);
  void check_memory();
  // Notifies the user of the wait. Returns false if the start need not wait any longer.
  bool keep_waiting(Waiting& waiting, const std::vector<HeldMemory>& held, std::int64_t now_ns);
  void query_later();
  void send_note(const std::string& text, bool is_warning);
  void start_all();
  void lost();
  void close();

  SupervisorContext& context_;
  DeviceWatchEvents& owner_;
  boost::asio::steady_timer timer_;  // The probe's start, its answer's limit, the next request.
  boost::asio::posix::stream_descriptor output_;
  Descriptor requests_;  // The process's standard input.
  pid_t pid_ = 0;
  std::string buffer_, text_;
  WatchAnswer answer_;
  Request pending_ = Request::kNone;
  std::map<std::string, std::uint64_t> used_before_;  // Bytes by UUID of the device.
  bool has_devices_ = false;
  bool must_check_ = false;
  bool was_lost_ = false;  // This generation's probe has exited and is not started again.
  std::uint32_t generation_ = 0;
  bool is_settling_ = false;  // devices_settled() is due after the next answer about health.
  std::vector<Waiting> waiting_;
  std::vector<HeldMemory> held_;
};

}  // namespace ivy
