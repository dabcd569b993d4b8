// SPDX-License-Identifier: Apache-2.0
// The base class of most links: runs the link as one coroutine, which ends when the link is closed
// or down, and reports events to the owner until then. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <string_view>
#include <utility>

#include "launcher/links/host_link.h"
#include "launcher/links/remote_entry.h"
#include "launcher/links/remote_greeting.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class SequencedLink : public HostLink {
 public:
  void close() final {
    if (!reports_.is_open()) return;
    reports_.close();
    release();
  }

 protected:
  SequencedLink(boost::asio::io_context& loop, HostLinkEvents& owner)
      : reports_(*this, owner), sequence_(loop) {}

  // Stops everything that the link has started. close() and fail() call it, and each derived
  // destructor calls close().
  virtual void release() = 0;

  // Reports that the link is down, and stops everything.
  void fail(const LinkDown& down) {
    if (!reports_.is_open()) return;
    release();
    reports_.down(down);
  }

  // Reports a step. The owner may close the link in this event, which then ends the coroutine.
  Awaitable<void> report_progress(LinkStep step) {
    reports_.progress(step);
    co_await sequence_.checkpoint();
  }

  // Passes a relay's bytes on; its first line may be a failure.
  void take_relayed(RemoteGreeting& greeting, std::string_view bytes) {
    if (greeting.is_handed_over()) return reports_.bytes(bytes);
    for (const GreetingEvent& event : greeting.feed(bytes)) {
      if (event.kind == GreetingEvent::Kind::kFail) return fail(relay_failure(event.text));
      reports_.bytes(event.text);
    }
  }

  LinkReports reports_;
  Sequence sequence_;
  OpenRequest request_;
};

}  // namespace ivy
