// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_profiler/recorder.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace ivy::nccl_profiler {

using comm_status::kCommunicators;

std::uint64_t Recorder::mask_of(const char* choice) {
  const std::string_view chosen = choice == nullptr ? "" : choice;
  if (chosen == "off") return 0;
  const std::uint64_t calls = kCollectiveEvent | kMessageEvent | kProxyEvent | kProxyStepEvent;
  return chosen == "kernels" ? calls | kKernelEvent : calls;
}

// Requires the mutex, like all functions that take rows and indexes.
bool Recorder::has_page() {
  if (slot_.load(std::memory_order_relaxed) != nullptr) return true;
  const Result<comm_status::StatusPage> page = request_page_();
  if (!page.ok()) return false;
  const pid_t pid = getpid();
  comm_status::SlotView view = page->slot(0);
  view.claim(0, pid);
  process_.store(Handle::process_of(pid), std::memory_order_relaxed);
  slot_.store(view.slot(), std::memory_order_release);
  return true;
}

Recorder::~Recorder() {
  for (const std::atomic<Communicator*>& communicator : communicators_) delete communicator.load();
}

std::optional<std::uint32_t> Recorder::take_row() {
  static_assert(kCommunicators == 64);
  if (~rows_ == 0) return std::nullopt;
  const auto row = static_cast<std::uint32_t>(__builtin_ctzll(~rows_));
  rows_ |= std::uint64_t{1} << row;
  return row;
}

// Returns an index whose communicator is closed, or nothing if all are in use; further
// communicators are not shown.
std::optional<std::uint8_t> Recorder::reserve_index() {
  for (std::uint8_t index = 0; index < kCommunicators; ++index) {
    Communicator* const communicator = communicators_[index].load(std::memory_order_relaxed);
    if (communicator != nullptr && communicator->collectives.is_open()) continue;
    if (communicator == nullptr)
      communicators_[index].store(new Communicator(), std::memory_order_release);
    return index;
  }
  return std::nullopt;
}

std::uint64_t Recorder::open(const CommunicatorFacts& facts, Handle& context) {
  context = Handle();
  const std::uint64_t mask = mask_of(std::getenv("IVY_NCCL_PROFILER"));
  const std::lock_guard lock(mutex_);
  if (mask == 0 || !has_page()) return 0;
  mask_.store(mask, std::memory_order_relaxed);
  const std::optional<std::uint8_t> index = reserve_index();
  const std::optional<std::uint32_t> row = index ? take_row() : std::nullopt;
  if (!row) return mask;
  Communicator& communicator = *communicators_[*index].load(std::memory_order_relaxed);
  communicator.has_name.store(false, std::memory_order_relaxed);
  communicator.collectives.open(slot_.load(std::memory_order_relaxed), *row,
                                (mask & kKernelEvent) != 0);
  if (facts.hash != 0) give_name(communicator, facts);
  context.kind = HandleKind::kCommunicator;
  context.communicator = *index;
  context.process = process_.load(std::memory_order_relaxed);
  return mask;
}

// agent/node/supervisor/observed_pages.cc parses this form.
void Recorder::give_name(Communicator& communicator, const CommunicatorFacts& facts) {
  char number[64];
  std::snprintf(number, sizeof number, "%d %d 0x%llx", facts.rank, facts.ranks,
                static_cast<unsigned long long>(facts.hash));
  communicator.name = number;
  if (!facts.name.empty()) communicator.name += " " + std::string(facts.name);
  communicator.collectives.rename(communicator.name);
  communicator.messages.rename(communicator.name);
  communicator.has_name.store(true, std::memory_order_release);
}

void Recorder::give_back(Track& track) {
  if (!track.is_open()) return;
  track.close();
  rows_ &= ~(std::uint64_t{1} << track.row());
}

void Recorder::close(const Handle& context) {
  if (context.kind != HandleKind::kCommunicator || !is_known(context)) return;
  Communicator* const communicator = communicator_of(context);
  if (communicator == nullptr) return;
  const std::lock_guard lock(mutex_);
  give_back(communicator->messages);
  give_back(communicator->collectives);
}

void Recorder::open_messages(Communicator& communicator) {
  const std::lock_guard lock(mutex_);
  if (communicator.messages.is_open() || !communicator.collectives.is_open()) return;
  const std::optional<std::uint32_t> row = take_row();
  if (!row) return;
  const bool watches_device = (mask_.load(std::memory_order_relaxed) & kKernelEvent) != 0;
  communicator.messages.open(slot_.load(std::memory_order_relaxed), *row, watches_device);
  communicator.messages.rename(communicator.name);
}

Recorder::Communicator* Recorder::communicator_of(const Handle& handle) const {
  return communicators_[handle.communicator].load(std::memory_order_acquire);
}

Track* Recorder::track_of(const Handle& handle) const {
  if (!is_known(handle)) return nullptr;
  Communicator* const communicator = communicator_of(handle);
  if (communicator == nullptr) return nullptr;
  return handle.is_message ? &communicator->messages : &communicator->collectives;
}

Handle Recorder::enter(const Handle& context, const Call& call, const CommunicatorFacts* facts) {
  if (context.kind != HandleKind::kCommunicator || !is_known(context)) return {};
  Communicator* const communicator = communicator_of(context);
  if (communicator == nullptr) return {};
  if (facts != nullptr && !communicator->has_name.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    give_name(*communicator, *facts);
  }
  const bool is_message = call.operation == comm_status::Operation::kSend ||
                          call.operation == comm_status::Operation::kReceive;
  if (is_message && !communicator->messages.is_open()) open_messages(*communicator);
  Track& track = is_message ? communicator->messages : communicator->collectives;
  if (!track.is_open()) return {};
  Handle operation = context;
  operation.value = track.enter(call);
  operation.kind = operation.value == 0 ? HandleKind::kNone : HandleKind::kOperation;
  operation.is_message = is_message;
  return operation;
}

Handle Recorder::start_kernel(const Handle& operation) {
  if (operation.kind != HandleKind::kOperation) return {};
  Track* const track = track_of(operation);
  if (track == nullptr) return {};
  track->begins(operation.value);
  Handle kernel = operation;
  kernel.kind = HandleKind::kKernel;
  return kernel;
}

Handle Recorder::start_proxy(const Handle& operation, const Proxy& proxy) {
  // The operation belongs to another process, so its handle has no meaning here.
  if (Handle::process_of(proxy.pid) != process_.load(std::memory_order_relaxed)) return {};
  if (operation.kind != HandleKind::kOperation || !is_known(operation) || proxy.peer < 0) return {};
  Handle made = operation;
  made.kind = HandleKind::kProxy;
  made.set_proxy(static_cast<std::uint32_t>(proxy.peer), proxy.is_send != 0, proxy.channel);
  return made;
}

Handle Recorder::start_step(const Handle& proxy, int step) const {
  if (proxy.kind != HandleKind::kProxy || !is_known(proxy)) return {};
  Handle made = proxy;
  made.kind = HandleKind::kStep;
  made.set_step(step);
  return made;
}

void Recorder::stop(const Handle& handle) {
  const bool is_operation = handle.kind == HandleKind::kOperation;
  if (!is_operation && handle.kind != HandleKind::kKernel) return;
  Track* const track = track_of(handle);
  if (track == nullptr) return;
  is_operation ? track->issued(handle.value) : track->ends(handle.value);
}

void Recorder::record(const Handle& step, int state) {
  if (step.kind != HandleKind::kStep) return;
  if (Track* const track = track_of(step)) track->record_wait(step, state);
}

}  // namespace ivy::nccl_profiler
