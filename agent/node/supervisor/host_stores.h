// SPDX-License-Identifier: Apache-2.0
// The job's store on its first host. Turns the process's reports into events.
//
// Thread: the supervisor's loop. Lifetime: ends the process.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/node/spawn/job_directory.h"
#include "agent/node/supervisor/store_process.h"
#include "proto/contract/status.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class HostStores {
 public:
  // `spare` is called with a process that is not a worker. `in_step`: a scheduler signals every
  // process of the step that we are in.
  HostStores(boost::asio::io_context& loop, std::function<void(const Event&)> send,
             std::function<void(pid_t)> spare, bool in_step)
      : loop_(loop), send_(std::move(send)), spare_(std::move(spare)), in_step_(in_step) {}

  // A lost store may be replaced by another.
  bool has_store() const { return store_ != nullptr && !store_->is_lost(); }
  // The launcher is answered by the event StoreOpened.
  void open_store(const OpenStore& request, const std::string& job_id,
                  const JobDirectory& directory, std::uint16_t port, std::uint16_t torch_port);
  // The store answers, and then GenerationBegun is sent.
  void begin_generation(std::uint32_t generation);
  // Writes ivy/gone/RANK to the job's store, because this process of the rank has exited. Does
  // nothing if the store is not on this host.
  void rank_gone(std::uint32_t rank, std::uint32_t rejoins);
  // Called when the supervisor has reaped a child; children other than the store are ignored.
  void reaped(pid_t pid, int wait_status);
  void spare_from(const std::function<void(pid_t)>& containment) const;
  void end();

 private:
  StoreProcess::Handlers handlers() const;

  boost::asio::io_context& loop_;
  const std::function<void(const Event&)> send_;
  const std::function<void(pid_t)> spare_;
  const bool in_step_;
  std::shared_ptr<StoreProcess> store_;  // Set when it was asked for.
};

}  // namespace ivy
