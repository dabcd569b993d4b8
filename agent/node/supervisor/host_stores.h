// The store's processes of a host: the job's store, on the first host, and the host's leaf. What
// they say becomes events.
//
// Thread: the supervisor's loop. Lifetime: ends both processes.
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
  // `spare`: that process is none of the workers'. `in_step`: a scheduler signals every process of
  // the step that we are in.
  HostStores(boost::asio::io_context& loop, std::function<void(const Event&)> send,
             std::function<void(pid_t)> spare, bool in_step)
      : loop_(loop), send_(std::move(send)), spare_(std::move(spare)), in_step_(in_step) {}

  bool has_store() const { return store_ != nullptr; }
  // Answered by StoreOpened.
  void open_store(const OpenStore& request, const std::string& job_id,
                  const JobDirectory& directory, std::uint16_t port, std::uint16_t torch_port);
  // Answered by GenerationBegun.
  void begin_generation(std::uint32_t generation);
  // Before the workers of this plan, who are given its address. One that cannot listen is as one
  // that is lost. `torch_port`: reserved; 0: none.
  void open_leaf(const HostPlan& plan, const std::string& job_id, const JobDirectory& directory,
                 std::uint16_t torch_port);
  // The supervisor has reaped this child; another's is ignored.
  void reaped(pid_t pid, int wait_status);
  void spare_from(const std::function<void(pid_t)>& containment) const;
  void end();

 private:
  StoreProcess::Handlers handlers() const;

  boost::asio::io_context& loop_;
  const std::function<void(const Event&)> send_;
  const std::function<void(pid_t)> spare_;
  const bool in_step_;
  std::unique_ptr<StoreProcess> store_;  // When it was asked for.
  std::unique_ptr<StoreProcess> leaf_;   // Likewise.
  std::string leaf_root_;                // Behind it.
};

}  // namespace ivy
