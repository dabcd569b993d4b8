// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/command_link.h"

#include <csignal>

#include "proto/os/clock.h"

namespace ivy {
namespace {

// How often to check whether the bundle makes progress.
constexpr std::chrono::seconds kPollInterval{1};
// Time without progress after which delayed_step() is shown. A login over an existing master
// connection of ssh takes less.
constexpr std::chrono::seconds kDelay{5};
// How long to wait for the program's exit code and last messages after its output has ended.
constexpr std::chrono::milliseconds kErrorOutputTimeout{500};

}  // namespace

CommandLink::CommandLink(std::shared_ptr<TransportContext> context, Host host,
                         HostLinkEvents& owner)
    : SequencedLink(context->loop(), owner), context_(std::move(context)), host_(std::move(host)) {}

CommandLink::~CommandLink() { close(); }

void CommandLink::open(const OpenRequest& request) {
  request_ = request;
  sequence_.start(run());
}

Awaitable<void> CommandLink::carry(const ChildRequest& request, const std::string& input) {
  if (const Result<void> started = start_program(request, input); !started)
    co_return fail(start_failure(started.error()));
  const bool entered = co_await enter_relay();
  if (!entered) {
    process_->signal(SIGTERM);
    co_return fail(entry_timeout());
  }
  co_await await_end();
  if (was_up()) context_->mark_damaged(host_, !has_received_relay_);
  fail(end_reason());
}

// Waits until the relay has started or the program's output has ended. Returns false if the program
// makes no progress for kEntryTimeout.
Awaitable<bool> CommandLink::enter_relay() {
  const auto set_wake = [this](const Arrival<bool>& arrive) { wake_ = arrive; };
  std::size_t unwritten = 0;
  std::chrono::nanoseconds timeout = kDelay;
  while (!entry_->is_up() && !output_ended_) {
    co_await sequence_.wait_at_most<bool>(kPollInterval, set_wake);
    if (!entry_->needed_architecture().empty()) {
      const Result<NodeBundle> bundle =
          co_await context_->bundle(sequence_, entry_->needed_architecture());
      moved_at_ns_ = monotonic_ns();
      enter(entry_->provide(bundle));
    }
    const std::size_t left = pump_->unwritten();
    if (left != std::exchange(unwritten, left)) moved_at_ns_ = monotonic_ns();
    const std::chrono::nanoseconds quiet(monotonic_ns() - moved_at_ns_);
    if (quiet >= kEntryTimeout) co_return false;
    const std::optional<LinkStep> moved = entry_->sending(left);
    if (moved) co_await report_progress(*moved);
    const LinkStep delayed = !has_greeted_ && quiet >= timeout ? delayed_step() : LinkStep();
    if (delayed.empty()) continue;
    timeout = std::chrono::nanoseconds::max();
    co_await report_progress(delayed);
  }
  co_return true;
}

// Waits until the output has ended, then a moment for the program's exit code and last messages.
Awaitable<void> CommandLink::await_end() {
  const auto set_wake = [this](const Arrival<bool>& arrive) { wake_ = arrive; };
  if (!output_ended_) co_await sequence_.wait<bool>(set_wake);
  const auto exit = [this](const Arrival<bool>& arrive) {
    process_->on_end([arrive](const ExitStatus&) { arrive(true); });
  };
  if (!process_->ended()) co_await sequence_.wait_at_most<bool>(kErrorOutputTimeout, exit);
  // One more turn of the loop reads what the program wrote before it exited.
  co_await sequence_.turn();
}

Result<void> CommandLink::start_program(ChildRequest request, const std::string& input) {
  request.is_connection = true;
  entry_.emplace(request_, host_.name);
  PipedChild child = IVY_TRY(start_piped(context_->loop(), request));
  process_ = child.process;
  pump_ = std::make_shared<DescriptorPump>(context_->loop(), *this, child.output.release(),
                                           child.input.release());
  pump_->start_reading();
  error_pump_ =
      std::make_shared<DescriptorPump>(context_->loop(), *this, child.errors.release(), -1);
  error_pump_->start_reading();
  if (!input.empty()) pump_->write(input);
  moved_at_ns_ = monotonic_ns();
  return {};
}

void CommandLink::pump_bytes(DescriptorPump& pump, std::string_view bytes) {
  if (&pump == error_pump_.get()) return append_tail(error_text_, bytes);
  take(bytes);
}

void CommandLink::pump_ended(DescriptorPump& pump, const std::string&) {
  if (&pump == error_pump_.get()) return;
  output_ended_ = true;
  wake_(true);
}

void CommandLink::take(std::string_view bytes) {
  if (entry_->is_handed_over()) {
    has_received_relay_ = true;
    return reports_.bytes(bytes);
  }
  moved_at_ns_ = monotonic_ns();
  has_received_ = true;
  enter(entry_->feed(bytes));
}

void CommandLink::enter(const RemoteEntry::Actions& actions) {
  if (actions.progress) reports_.progress(*actions.progress);
  if (!actions.send.empty()) pump_->write(actions.send);
  has_greeted_ = has_greeted_ || actions.is_up || !entry_->needed_architecture().empty();
  if (!entry_->needed_architecture().empty()) wake_(true);
  if (actions.is_up) {
    slot_.reset();
    // Warnings during the login do not explain why the connection breaks later.
    error_text_.clear();
    wake_(true);
    reports_.up(up_);
  }
  has_received_relay_ = has_received_relay_ || !actions.bytes.empty() || actions.failed;
  if (!actions.bytes.empty()) reports_.bytes(actions.bytes);
  if (actions.failed) fail(*actions.failed);
}

void CommandLink::write(std::string bytes) {
  drained_due_ = true;
  pump_->write(bytes);
}

void CommandLink::release() {
  sequence_.stop();
  slot_.reset();
  if (pump_) pump_->stop();
  if (error_pump_) error_pump_->stop();
  if (process_) process_->end_within(context_->loop());
}

}  // namespace ivy
