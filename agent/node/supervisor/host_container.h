// SPDX-License-Identifier: Apache-2.0
// The job's container on this host (--container). A child process, `ivy-node container`
// (../container), starts it, keeps it, and removes it when its standard input closes. Workers enter
// the container by themselves (`ivy-node container-enter`), so they remain children of the
// supervisor. One container serves all generations.
//
// Thread: the loop's. Lifetime: the arguments of the constructor must outlive it.
#pragma once

#include <sys/types.h>

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/supervisor/supervisor_context.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Implemented by Supervisor.
class HostContainerEvents {
 public:
  // The container has ended although workers may still need it.
  virtual void container_lost(const std::string& reason) = 0;
  // The container has been removed after close().
  virtual void container_closed() = 0;

 protected:
  ~HostContainerEvents() = default;
};

class HostContainer {
 public:
  HostContainer(SupervisorContext& context, HostContainerEvents& owner)
      : context_(context), owner_(owner), kill_timer_(context.loop) {}
  HostContainer(const HostContainer&) = delete;
  HostContainer& operator=(const HostContainer&) = delete;

  // Starts the container of a Hello, and looks the program up in it. The image may have to be
  // pulled, so this may take minutes; the launcher's --start-timeout is the limit.
  void open(const Hello& hello, std::function<void(Result<ContainerStarted>)> done);
  // Excludes the container from the containment, which is new in each generation.
  void spare_again();

  // Returns true until the container has been removed.
  bool is_open() const { return pid_ > 0; }
  // Removes the container. Then calls container_closed().
  void close();
  // The supervisor has reaped a child; does nothing unless it is the container's keeper.
  void reaped(pid_t pid);

  // Returns the words that precede a worker's program, or none if the job has no container.
  std::vector<std::string> enter_words(const std::string& working_directory) const;
  // Returns the image's variables, and this host's own masks of devices.
  Environment environment() const;
  bool is_used() const { return started_.has_value(); }

 private:
  SupervisorContext& context_;
  HostContainerEvents& owner_;
  boost::asio::steady_timer kill_timer_;
  pid_t pid_ = 0;
  Descriptor input_;                    // Closing it ends the container.
  std::shared_ptr<Descriptor> output_;  // Shared with the task that reads it.
  std::optional<ContainerStarted> started_;
  bool is_closing_ = false;
};

}  // namespace ivy
