// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/remote_entry.h"

#include <charconv>

#include "proto/contract/text_columns.h"

namespace ivy {
std::string opening_line(const OpenRequest& request) {
  return std::string("IVYOPEN 1 ") + (request.reattach ? "reattach " : "new ") + request.job_id +
         " " + std::to_string(request.host) + "\n";
}

LinkDown relay_failure(const std::string& text) {
  LinkDown down;
  if (text == "no-such-job") {
    down.failure = LinkFailure::kNoSuchJob;
    down.message = "the job's supervisor has exited";
    return down;
  }
  down.failure = LinkFailure::kBootstrap;
  down.message = "the supervisor cannot be started: " + text;
  return down;
}

RemoteEntry::Actions RemoteEntry::feed(std::string_view bytes) {
  Actions actions;
  for (const GreetingEvent& event : greeting_.feed(bytes)) {
    apply(event, actions);
    if (actions.failed) break;
  }
  return actions;
}

void RemoteEntry::apply(const GreetingEvent& event, Actions& actions) {
  switch (event.kind) {
    case GreetingEvent::Kind::kNeed:
      return need(event.text, actions);
    case GreetingEvent::Kind::kSend:
      return send_from(event.text, actions);
    case GreetingEvent::Kind::kReady:
      actions.send += opening_line(request_);
      sending_.reset();
      actions.is_up = true;
      is_up_ = true;
      return;
    case GreetingEvent::Kind::kBytes:
      actions.bytes += event.text;
      return;
    case GreetingEvent::Kind::kFail:
      actions.failed = is_up_ ? relay_failure(event.text) : failure(event.text);
      return;
    case GreetingEvent::Kind::kFlood:
      actions.failed = LinkDown{
          LinkFailure::kBootstrap,
          "its shell does not start ivy-node, but keeps printing; the last line: " + event.text,
          "the command that reaches " + host_ +
              ", and start-up files of its shell, must not print on standard output without end"};
      return;
  }
}

// Handles the marker `send BYTES` of the install script, which was sent the size of the bundle.
void RemoteEntry::send_from(const std::string& offset, Actions& actions) {
  std::size_t begin = 0;
  const char* const end = offset.data() + offset.size();
  const std::from_chars_result read = std::from_chars(offset.data(), end, begin);
  if (!bundle_ || read.ec != std::errc() || read.ptr != end || begin > bundle_->bytes) {
    actions.failed = failure("the remote shell requested an invalid range of ivy-node");
    return;
  }
  actions.send.append(*bundle_->content, begin);
  sending_.emplace(begin, bundle_->bytes);
  actions.progress = sending_step("sending " + std::string(begin > 0 ? "the rest of " : "") +
                                  "ivy-node (" + mebibytes(bundle_->bytes - begin) + ")");
}

std::optional<LinkStep> RemoteEntry::sending(std::size_t unsent) {
  if (!sending_ || unsent > bundle_->bytes) return std::nullopt;
  const std::optional<UploadState> moved = sending_->moved_to(bundle_->bytes - unsent);
  if (!moved) return std::nullopt;
  return sending_step("sending ivy-node", moved);
}

// Handles the marker `need`. requested: "x86_64", or "x86_64 damaged" if files of the copy there
// are missing or too short.
void RemoteEntry::need(const std::string& requested, Actions& actions) {
  const std::string architecture = requested.substr(0, requested.find(' '));
  const bool is_damaged = architecture.size() < requested.size();
  if (request_.reattach && !is_damaged) {
    // The build is no longer on that host, so neither is a supervisor of this build.
    actions.failed =
        LinkDown{LinkFailure::kNoSuchJob, "ivy-node has been removed from the host", ""};
    return;
  }
  needed_architecture_ = architecture;
  actions.progress =
      is_damaged ? "ivy-node is damaged on the host" : "ivy-node is not on the host yet";
}

RemoteEntry::Actions RemoteEntry::provide(Result<NodeBundle> bundle) {
  Actions actions;
  needed_architecture_.clear();
  if (bundle.ok()) {
    bundle_ = std::move(*bundle);
    actions.send = NodeUpload::install_script(*bundle_);
  } else {
    actions.failed = LinkDown::from(LinkFailure::kBootstrap, bundle.error());
  }
  return actions;
}

LinkDown RemoteEntry::failure(const std::string& text) const {
  LinkDown down;
  down.failure = LinkFailure::kBootstrap;
  down.message = "ivy-node cannot be installed there: " + text;
  down.fix = "on " + host_ +
             ", one of these directories needs free space and must allow programs to run: "
             "~/.cache, $XDG_CACHE_HOME, /tmp or "
             "/dev/shm";
  return down;
}

}  // namespace ivy
