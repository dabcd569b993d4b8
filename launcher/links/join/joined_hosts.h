// SPDX-License-Identifier: Apache-2.0
// The hosts of torchrun mode, as their links see them: the ivyrun of each node has joined, and
// starts an ivy-node there that dials back. Thread: the loop's. Lifetime: held by the links.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <set>
#include <string>

#include "launcher/links/srun/dial_back_hosts.h"

namespace ivy {

class JoinedHosts : public DialBackHosts, public std::enable_shared_from_this<JoinedHosts> {
 public:
  explicit JoinedHosts(boost::asio::io_context& loop) : loop_(loop) {}

  void wait_for(const OpenRequest& request, const std::string& host, StepClient& client) override;
  void leave(std::uint32_t host, const StepClient& client) override { hosts_.remove(host, client); }
  Transport transport() const override { return Transport::kJoined; }
  const std::string& command_text() const override { return command_text_; }
  std::string listening_text() const override { return listening_text_; }

  void set_listening_text(std::string text) { listening_text_ = std::move(text); }
  void deliver(std::uint32_t host, std::shared_ptr<DialBackStream> stream) {
    hosts_.deliver(host, std::move(stream));
  }
  // The node's ivyrun has exited, and everything that it started exits with it.
  void mark_closed(const std::string& host);
  // The node's ivyrun is silent, but may return. If its ivy-node becomes silent too, the host
  // counts as closed.
  void mark_silent(const std::string& host);
  // The node's ivyrun has connected again.
  void mark_connected(const std::string& host) { silent_.erase(host); }

 private:
  boost::asio::io_context& loop_;
  StepHosts hosts_;
  // Hosts that are closed, including those for which no link waits yet.
  std::set<std::string> closed_;
  std::set<std::string> silent_;
  const std::string command_text_ = "ivyrun --node-rank, on that node";
  std::string listening_text_;
};

}  // namespace ivy
