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
  struct Step {
    std::string send;                  // Bytes for the far end.
    std::optional<LinkStep> progress;  // A step to show to the user.
    bool up = false;                   // The link is up now; `send` ends with the opening line.
    std::string bytes;                 // Bytes of the relay, for LinkReports::bytes().
    std::optional<LinkDown> failed;    // The conversation has failed.
  };

  // host: its name in messages.
  RemoteEntry(OpenRequest request, std::string host)
      : request_(std::move(request)), host_(std::move(host)) {}

  // Takes bytes from the far end.
  Step feed(std::string_view bytes);
  // Returns the architecture whose bundle the host waits for; empty: none. Call provide() with the
  // bundle.
  const std::string& needed_bundle() const { return needed_; }
  Step provide(Result<NodeBundle> bundle);
  // Returns the progress of sending the bundle. unsent: how many bytes from feed() and provide()
  // have not left yet. None if there is nothing new, or no bundle is being sent.
  std::optional<LinkStep> sending(std::size_t unsent);
  const std::string& host() const { return host_; }
  // True if all further bytes are the relay's: pass them on without feed().
  bool is_past() const { return greeting_.is_past(); }
  bool is_up() const { return up_; }
  // Returns the shell's other output. Its last line explains most failures.
  const std::string& noise() const { return greeting_.noise(); }

 private:
  void apply(const GreetingEvent& event, Step& step);
  void need(const std::string& requested, Step& step);
  void send_from(const std::string& offset, Step& step);
  LinkDown failure(const std::string& text) const;

  const OpenRequest request_;
  const std::string host_;
  RemoteGreeting greeting_{RemoteGreeting::Sender::kShell};
  std::string needed_;
  std::optional<NodeBundle> bundle_;
  std::optional<UploadProgress> sending_;  // Set while a bundle is being sent.
  bool up_ = false;
};

// Converts the failure line of a relay or a warden.
LinkDown relay_failure(const std::string& text);

}  // namespace ivy
