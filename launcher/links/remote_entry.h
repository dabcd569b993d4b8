// SPDX-License-Identifier: Apache-2.0
// The conversation with a host from the first byte of its login shell to the first byte of the
// relay, for every transport that uses a shell: interprets the bytes that arrive, makes the
// replies, and decides when the link is up. The markers are listed in remote_greeting.h, the
// replies in node_upload.h. Thread: the loop's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/links/host_link.h"
#include "launcher/links/node_upload.h"
#include "launcher/links/remote_greeting.h"

namespace ivy {

// Returns the relay's first line of input: "IVYOPEN 1 new 0123... 7\n".
std::string opening_line(const OpenRequest& request);

class RemoteEntry {
 public:
  // The transport's next actions, in this order.
  struct Actions {
    std::optional<LinkStep> progress;  // Show this step to the user.
    std::string send;                  // Send these bytes to the far end.
    bool is_up = false;  // Report that the link is up: `send` ends with the opening line.
    std::string bytes;   // Pass these bytes of the relay to LinkReports::bytes().
    std::optional<LinkDown> failed;  // Close the link: the conversation has failed.
  };

  // host: its name in messages.
  RemoteEntry(OpenRequest request, std::string host)
      : request_(std::move(request)), host_(std::move(host)) {}

  // Takes bytes from the far end.
  Actions feed(std::string_view bytes);
  // Returns the architecture whose bundle the host waits for, until provide() is called; else
  // empty.
  const std::string& needed_architecture() const { return needed_architecture_; }
  // Sends the bundle for needed_architecture(), or fails with the error.
  Actions provide(Result<NodeBundle> bundle);
  // Returns the progress of sending the bundle, or nothing if it has not changed or no bundle is
  // being sent. unsent: bytes of Actions::send that have not been sent yet.
  std::optional<LinkStep> sending(std::size_t unsent);
  const std::string& host() const { return host_; }
  // True if all further bytes are the relay's: pass them on without feed().
  bool is_handed_over() const { return greeting_.is_handed_over(); }
  bool is_up() const { return is_up_; }
  // Returns the shell's other output. Its last line explains most failures.
  const std::string& noise() const { return greeting_.noise(); }

 private:
  void apply(const GreetingEvent& event, Actions& actions);
  void need(const std::string& requested, Actions& actions);
  void send_from(const std::string& offset, Actions& actions);
  LinkDown failure(const std::string& text) const;

  const OpenRequest request_;
  const std::string host_;
  RemoteGreeting greeting_{RemoteGreeting::Sender::kShell};
  std::string needed_architecture_;
  std::optional<NodeBundle> bundle_;
  std::optional<UploadProgress> sending_;  // Set while a bundle is being sent.
  bool is_up_ = false;
};

// Converts the failure line of a relay or a warden.
LinkDown relay_failure(const std::string& text);

}  // namespace ivy
