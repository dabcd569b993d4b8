// SPDX-License-Identifier: Apache-2.0
// The link through a command of the user: --exec, or a transport of that kind such as kubectl. The
// command starts a shell on the host, which reads ivyrun's script from its standard input. Thread:
// the loop's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/links/command_link.h"

namespace ivy {

class ExecLink final : public CommandLink {
 public:
  ExecLink(std::shared_ptr<TransportContext> context, Host host, HostLinkEvents& owner);

 private:
  // CommandLink
  Awaitable<void> run() override;
  LinkDown start_failure(const Error& error) const override;
  LinkDown entry_timeout() const override;
  LinkDown end_reason() const override;
  LinkStep delayed_step() const override;

  // Returns "; it printed: ..." with the last line of the command; empty if it printed nothing.
  RemoteText printed() const;
  // Returns advice with a command that shows whether the host can be reached.
  std::string try_it() const;
  LinkStep step(RemoteText text) const;

  const std::vector<std::string> words_;
  const std::string program_;  // The name of the program, without its directory.
};

}  // namespace ivy
