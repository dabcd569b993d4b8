// SPDX-License-Identifier: Apache-2.0
// The hosts of torchrun mode as their links see them: each node's ivyrun has joined, and starts an
// ivy-node there that dials back. Thread: the loop's. Lifetime: held by the links.
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
  // The ivyrun of that node has gone away; whatever it had started ends with it.
  void lose(const std::string& host);
  // Its ivyrun is not heard, and may come back: it is lost if its ivy-node is not heard either.
  void doubt(const std::string& host);
  void trust(const std::string& host) { doubted_.erase(host); }

 private:
  boost::asio::io_context& loop_;
  StepHosts hosts_;
  std::set<std::string> gone_;  // Perhaps before a link waited for them.
  std::set<std::string> doubted_;
  const std::string command_text_ = "ivyrun --node-rank, on that node";
  std::string listening_text_;
};

}  // namespace ivy
