// SPDX-License-Identifier: Apache-2.0
// The health of this host's devices while the job runs: ivy-probe stays beside the workers, keeps a
// reading from their start, and says after a failure what has changed (agent/devices/
// watch_answer.h). Before workers start again it says who still holds memory of their devices.
//
// Nothing here comes before a worker's first start; the process begins half a second later, or
// before workers start again. A host without NVIDIA's GPUs and InfiniBand has none. Thread: the
// supervisor's loop. Lifetime: ends the process.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/devices/watch_answer.h"
#include "proto/os/descriptor.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class DeviceWatch {
 public:
  struct Handlers {
    std::function<void(const Event&)> send;
    std::function<void(pid_t)> spare;  // A process that is not a worker.
    // The job's running processes, whose memory does not count as occupied.
    std::function<std::vector<pid_t>()> living;
  };
  // A start that waits for device memory: exactly one of the two functions is called, once.
  struct Start {
    std::string who;                   // In notes: "the next attempt".
    std::vector<std::string> devices;  // Their UUIDs; an empty list means all.
    std::function<void()> start;
    std::function<void()> refuse;  // Called if a stop starts before it.
  };

  // in_step has the meaning that it has in ServerChild.
  DeviceWatch(boost::asio::io_context& loop, std::string probe_program, bool in_step,
              Handlers handlers);
  ~DeviceWatch() { end(); }
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // Takes the answer to Hello: whether any device can be watched, and the memory in use before the
  // job.
  void learn(const HostFacts& devices);
  // The workers of this generation have been started.
  void begin(std::uint32_t generation);
  // Something has failed, or the workers are being stopped: settle() looks.
  void something_failed() { must_look_ = true; }
  // Calls `then` after pending device events were sent to the launcher; immediately if there is no
  // probe, and within two seconds whatever a driver does.
  void settle(std::function<void()> then);
  // Calls `next.start` when the devices' memory is free, immediately if that cannot be known, and
  // after kDeviceMemoryWait in any case. Notes name the processes that hold it. Several starts may
  // wait.
  void await_memory(Start next);
  // Asks who holds memory of the devices, if there is anybody to ask; held() has it later.
  void sample();
  // As of the last answer; empty if the probe no longer answers.
  const std::vector<HeldMemory>& held() const { return held_; }
  // Call when a stop starts: refuses all waiting starts.
  void give_up();
  void reaped(pid_t pid);
  void end();

 private:
  enum class Question { kNone, kHealth, kMemory };
  struct Waiting {
    Start next;
    std::int64_t since_ns = 0;  // 0: nothing has been said yet.
  };
  void launch();
  bool is_running() const { return pid_ != 0; }
  void ask(Question question);
  void read_more();
  void take_text();
  void answered(bool in_time);
  void tell_findings(bool in_time);
  void check_memory();
  bool must_wait(Waiting& waiting, const std::vector<HeldMemory>& held, std::int64_t now_ns);
  void ask_again();
  void say(const std::string& text, bool is_warning);
  void start_all();
  void lost();
  void close();

  const std::string program_;
  const bool in_step_;
  const Handlers handlers_;
  boost::asio::steady_timer timer_;  // The probe's start, the answer's limit, the next question.
  boost::asio::posix::stream_descriptor output_;
  Descriptor words_;
  pid_t pid_ = 0;
  std::string buffer_, text_;
  WatchAnswer answer_;
  Question question_ = Question::kNone;
  std::map<std::string, std::uint64_t> used_before_;  // Bytes, by the device's UUID.
  bool has_devices_ = false;
  bool must_look_ = false;
  bool was_lost_ = false;  // The probe of this generation: it is not started again for it.
  std::uint32_t generation_ = 0;
  std::function<void()> settled_;
  std::vector<Waiting> waiting_;
  std::vector<HeldMemory> held_;
};

}  // namespace ivy
