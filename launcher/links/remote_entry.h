// SPDX-License-Identifier: Apache-2.0
// The conversation from the first byte of a remote login shell to the first byte of the relay, for
// every transport that uses a shell: interprets the bytes that arrive, makes the answers, and
// determines when the link is up. Thread: the loop's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/links/host_link.h"
#include "launcher/links/node_upload.h"
#include "launcher/links/remote_greeting.h"

namespace ivy {

// "IVYOPEN 1 new 0123... 7\n": the relay's first line of input.
std::string opening_line(const OpenRequest& request);

class RemoteEntry {
 public:
  // Actions for the transport after some bytes have arrived, in this order.
  struct Step {
    std::string send;
    std::string progress;  // For people; empty: nothing new.
    bool up = false;       // The link is up now; `send` ends with the opening line.
    std::string bytes;     // From the relay, for LinkReports::bytes().
    std::optional<LinkDown> failed;
  };

  // host: as people know it, for messages.
  RemoteEntry(OpenRequest request, std::string host)
      : request_(std::move(request)), host_(std::move(host)) {}

  Step feed(std::string_view bytes);
  // The architecture whose bundle the far shell waits for: read it and provide() it. Empty: none.
  const std::string& needed_bundle() const { return needed_; }
  Step provide(Result<NodeBundle> bundle);
  // How far the bundle has got, for users, while this many bytes of what feed() gave are unsent;
  // empty: nothing new, or no bundle is under way.
  std::string sending(std::size_t unsent);
  // True once only the relay's bytes can follow: pass them on without feed().
  bool is_past() const { return greeting_.is_past(); }
  bool is_up() const { return up_; }
  // Output of the shell that was not for us; its last line explains most failures.
  const std::string& noise() const { return greeting_.noise(); }

 private:
  void apply(const GreetingEvent& event, Step& step);
  void need(const std::string& asked, Step& step);
  void send_from(const std::string& offset, Step& step);
  LinkDown failure(const std::string& text) const;

  const OpenRequest request_;
  const std::string host_;
  RemoteGreeting greeting_{RemoteGreeting::Speaker::kShell};
  std::string needed_;
  std::optional<NodeBundle> bundle_;
  std::optional<UploadProgress> sending_;  // Nothing: no bundle is under way.
  bool up_ = false;
};

// A failure line of a relay or warden as a LinkDown.
LinkDown relay_failure(const std::string& text);

}  // namespace ivy
