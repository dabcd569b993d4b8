// SPDX-License-Identifier: Apache-2.0
// The functions are in the order that nccl_communicator.h lists: creation, operations, waits, the
// end.
#include "comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/nccl/collect_rank_facts.h"
#include "comm/nccl/nccl_bootstrap.h"
#include "comm/nccl/operation_calls.h"
#include "comm/nccl/ras.h"
#include "comm/transports/shm/relax.h"
#include "proto/os/clock.h"
#include "proto/wire/ras.h"

namespace ivy::comm::nccl {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// A wait spins for the time of a small operation, and then sleeps for times that double from
// kFirstSleep to kLongestSleep. It checks for trouble at most once per kQueryInterval.
constexpr microseconds kSpin{100};
constexpr microseconds kFirstSleep{20};
constexpr microseconds kLongestSleep{5'000};
constexpr milliseconds kQueryInterval{1};

// How long an abort waits for a call that puts something on a stream; such calls do not block.
constexpr milliseconds kCallTimeout{50};

class Pause {
 public:
  // Spins or sleeps after a check that has found nothing.
  void rest(microseconds longest) {
    if (steady_now() - began_ < kSpin) return relax();
    std::this_thread::sleep_for(std::min(next_, longest));
    next_ = std::min(next_ * 2, kLongestSleep);
  }

 private:
  const steady_clock::time_point began_ = steady_now();
  microseconds next_ = kFirstSleep;
};

bool shows_times() {
  const char* const wanted = std::getenv("IVY_NCCL_TIMES");
  return wanted != nullptr && *wanted == '1';
}

// Creates `child` from the parent without its dead ranks. Waits until the parent is idle, because
// NCCL sets the child's handle only then.
Status shrink(const Functions& nccl, const Parent& parent, Handle* child, Config* config) {
  const FailedCommunicator& from = parent.revoked->get();
  std::vector<int> excluded = parent.excluded;
  Status status = nccl.shrink(from.handle, excluded.data(), static_cast<int>(excluded.size()),
                              child, config, kShrinkAbort);
  while (status == kInProgress) {
    std::this_thread::sleep_for(milliseconds(1));
    const Status queried = nccl.get_async_error(from.handle, &status);
    if (queried != kSuccess) status = queried;
  }
  return status;
}

struct InitRank {
  int size;
  int rank;
  std::vector<UniqueId>& ids;
};

Status begin_init(const Functions& nccl, const InitRank& rank_of_init, Handle* handle,
                  Config* config) {
  if (rank_of_init.ids.size() == 1) {
    return nccl.init_rank_config(handle, rank_of_init.size, rank_of_init.ids[0], rank_of_init.rank,
                                 config);
  }
  return nccl.init_rank_scalable(handle, rank_of_init.size, rank_of_init.rank,
                                 static_cast<int>(rank_of_init.ids.size()), rank_of_init.ids.data(),
                                 config);
}

// Starts the deadline if it has not started yet, and returns the time at which it ends.
steady_clock::time_point end_of(Deadline& deadline) {
  deadline.start();
  return steady_now() + duration_cast<steady_clock::duration>(deadline.left());
}

void show_times(const DeviceCommunicatorOptions& options, steady_clock::time_point began,
                steady_clock::time_point known, steady_clock::time_point synchronized_at) {
  const auto text = [](auto from, auto to) {
    return std::to_string(duration_cast<microseconds>(to - from).count()) + " us";
  };
  const std::string line = "ivycomm: NCCL of communicator " + options.name + ", rank " +
                           std::to_string(options.rank) + ": libraries " + text(began, known) +
                           ", ready and id " + text(known, synchronized_at) + ", init " +
                           text(synchronized_at, steady_now()) + "\n";
  std::fputs(line.c_str(), stderr);
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(DeviceCommunicatorOptions options)
    : options_(std::move(options)),
      diagnosis_(options_, *this),
      driver_(Driver::in_use()),
      regions_(std::make_shared<RegisteredRegions>(enqueued_)),
      calls_(regions_->mutex),
      enqueued_(*this) {
  device_regions::add_user(regions_);
}

DeviceCommunicator::~DeviceCommunicator() {
  static_cast<void>(end());
  regions_->close();
}

void DeviceCommunicator::join(DeviceCommunicatorOptions options) { options_ = std::move(options); }

// ---- Creation -----------------------------------------------------------------------------------

MaybeFailure DeviceCommunicator::prepare(int device, Deadline& deadline) {
  if (device_ >= 0) return std::nullopt;
  if (const std::optional<std::string> why = taint()) {
    return make_failure(FailureKind::kOther, *why);
  }
  const auto began = steady_now();
  BootstrapOptions options = bootstrap_options(deadline);
  report_phase(options, Phase::kBegun);
  RankFacts facts;
  if (MaybeFailure failure = find_facts(device, deadline, facts)) return failure;
  const auto known = steady_now();
  if (facts.error.empty()) {
    library_ = *Library::load();
    diagnosis_.use(*library_);
    driver_ = *Driver::load();
    options.can_scale = library_->functions().init_rank_scalable != nullptr;
    if (options_.parent != nullptr) facts.parent = options_.parent->key;
  }
  const BootstrapResult ready = bootstrap(options, facts);
  if (ready.failure) return ready.failure;
  const auto synchronized_at = steady_now();
  if (ready.is_shared) {
    is_shared_ = true;
  } else {
    report_phase(options, Phase::kInit);
    if (const MaybeFailure failure = connect(ready.ids, device, deadline)) {
      Failure detailed = *failure;
      if (detailed.kind == FailureKind::kTimeout)
        set_text(detailed, detailed.text + describe_unfinished_ranks(options));
      return diagnosis_.with_ras(detailed);
    }
    report_phase(options, Phase::kDone);
  }
  options_.parent = nullptr;
  device_ = device;
  if (shows_times()) show_times(options_, began, known, synchronized_at);
  return std::nullopt;
}

MaybeFailure DeviceCommunicator::find_facts(int device, Deadline& deadline, RankFacts& facts) {
  const auto found = std::make_shared<RankFacts>();
  const std::int32_t rank = options_.world_ranks[static_cast<std::size_t>(options_.rank)];
  MaybeFailure failure = call("loading the driver and NCCL", end_of(deadline),
                              [found, rank, host = options_.host, device] {
                                *found = collect_rank_facts(rank, host, device);
                              });
  if (!failure) facts = *found;
  return failure;
}

BootstrapOptions DeviceCommunicator::bootstrap_options(Deadline& deadline) {
  BootstrapOptions options;
  options.communicator = options_.name;
  options.key = options_.key;
  options.store = options_.store;
  options.rank_names = options_.rank_names;
  options.world_ranks = options_.world_ranks;
  options.spans_hosts = options_.spans_hosts;
  options.rank = options_.rank;
  options.deadline = end_of(deadline);
  options.owner = this;
  return options;
}

MaybeFailure DeviceCommunicator::make_id(steady_clock::time_point deadline, UniqueId& id) {
  const auto creation = std::make_shared<HandleCreation>();
  creation->ids.resize(1);
  MaybeFailure failure = call("making the unique id", deadline, [creation, library = library_] {
    creation->status = library->functions().get_unique_id(creation->ids.data());
  });
  if (failure) return failure;
  id = creation->ids[0];
  if (creation->status == kSuccess) return std::nullopt;
  return make_failure(FailureKind::kOther,
                      "NCCL of communicator " + options_.name +
                          ": make the unique id: " + library_->name_of_error(creation->status));
}

// Creates the handle from the ids. Without ids, creates it from the parent, whose remaining ranks
// keep their order.
MaybeFailure DeviceCommunicator::connect(const std::vector<UniqueId>& ids, int device,
                                         Deadline& deadline) {
  chosen_ = device;
  const std::shared_ptr<HandleCreation> creation = begin_creation(options_.name);
  creation->ids = ids;
  const auto size = static_cast<int>(options_.rank_names.size());
  const auto current = std::make_shared<Result<void>>();
  const auto init = [creation, current, nccl = &library_->functions(), driver = driver_, device,
                     size, rank = options_.rank, parent = options_.parent] {
    const Driver::Current chosen(*driver, device);
    *current = chosen.result();
    if (!current->ok()) return;
    HandleCreation& out = *creation;
    if (out.ids.empty()) {
      out.status = shrink(*nccl, *parent, &out.handle, &out.config);
      return;
    }
    out.status = begin_init(*nccl, {size, rank, out.ids}, &out.handle, &out.config);
  };
  // If the call was abandoned, only `late` knows the handle, so it has to abort it.
  const auto late = [creation, abort = library_->functions().abort] {
    Handle const handle = creation->created();
    if (handle != nullptr && !creation->is_aborted.exchange(true)) abort(handle);
  };
  const std::string what = ids.empty() ? "shrink" : "init";
  if (MaybeFailure failure = call(what, end_of(deadline), init, late)) {
    return give_up_init(*creation, *failure, deadline);
  }
  if (!current->ok()) return make_failure(FailureKind::kOther, current->error().message);
  {
    const std::lock_guard lock(handle_mutex_);
    handle_ = creation->created();
  }
  if (creation->status != kSuccess && creation->status != kInProgress) {
    return diagnosis_.nccl_error(creation->status, what);
  }
  return await_nccl(handle_, deadline, what);
}

std::shared_ptr<DeviceCommunicator::HandleCreation> DeviceCommunicator::begin_creation(
    const std::string& name) {
  auto creation = std::make_shared<HandleCreation>();
  creation->name = name;
  if (library_->version() >= kNamedFrom) creation->config.set_name(creation->name.c_str());
  const std::lock_guard lock(handle_mutex_);
  creations_.push_back(creation);
  return creation;
}

// Describes an init that was given up. Keeps its handle for abort(): NCCL sets the handle before it
// waits for other ranks, and an abort of the handle ends that wait.
Failure DeviceCommunicator::give_up_init(HandleCreation& creation, const Failure& failure,
                                         Deadline& deadline) {
  Handle const handle = creation.created();
  {
    const std::lock_guard lock(handle_mutex_);
    if (handle != nullptr && !creation.is_aborted.exchange(true)) handle_ = handle;
  }
  if (failure.kind != FailureKind::kTimeout) return failure;
  return diagnosis_.stuck_wait("init", deadline.waited(), handle);
}

MaybeFailure DeviceCommunicator::split(int color, int key, const std::string& name,
                                       Deadline& deadline,
                                       std::unique_ptr<DeviceCommunicator>& child) {
  child = nullptr;
  if (library_->functions().split == nullptr) return std::nullopt;
  const std::shared_ptr<HandleCreation> creation = begin_creation(name);
  const auto called = std::make_shared<Status>(kSuccess);
  const auto start = [creation, called, nccl = &library_->functions(), handle = handle_.load(),
                      color, key, driver = driver_, device = device_.load()] {
    const Driver::Current on(*driver, device);
    *called = nccl->split(handle, color, key, &creation->handle, &creation->config);
  };
  MaybeFailure failure;
  {
    const std::lock_guard lock(calls_);
    failure = call("split", end_of(deadline), start);
  }
  if (!failure && *called != kSuccess && *called != kInProgress) {
    return diagnosis_.nccl_error(*called, "split");
  }
  // NCCL sets the child's handle when the parent is idle again.
  if (!failure) failure = await_nccl(handle_, deadline, "split");
  if (failure) return diagnosis_.with_ras(*failure);
  {
    const std::lock_guard lock(handle_mutex_);
    creations_.pop_back();  // NCCL no longer writes to it.
  }
  if (color == kNoColor || creation->created() == nullptr) return std::nullopt;
  child = std::make_unique<DeviceCommunicator>(options_);
  child->library_ = library_;
  child->diagnosis_.use(*library_);
  child->driver_ = driver_;
  child->chosen_ = device_.load();
  child->creations_.push_back(creation);
  child->handle_ = creation->created();
  failure = child->await_nccl(child->handle_, deadline, "split");
  if (failure) return diagnosis_.with_ras(*failure);
  child->device_ = device_.load();
  return std::nullopt;
}

MaybeFailure DeviceCommunicator::add_window(const DeviceRegion& region, Deadline& deadline) {
  const Functions& nccl = library_->functions();
  if (nccl.register_window == nullptr || nccl.deregister_window == nullptr) return std::nullopt;
  struct Registering {
    void* window = nullptr;
    Status status = kSuccess;
  };
  const auto made = std::make_shared<Registering>();
  const auto start = [made, region, &nccl, handle = handle_.load(), driver = driver_] {
    const Driver::Current current(*driver, region.device);
    made->status =
        nccl.register_window(handle, region.memory, region.bytes, &made->window, kSymmetric);
  };
  MaybeFailure failure;
  {
    const std::lock_guard lock(calls_);
    failure = call("registering a window", end_of(deadline), start);
  }
  if (!failure && made->status != kSuccess && made->status != kInProgress) {
    return diagnosis_.nccl_error(made->status, "registering a window");
  }
  if (!failure) failure = await_nccl(handle_, deadline, "registering a window");
  if (failure) return diagnosis_.with_ras(*failure);
  const std::lock_guard lock(calls_);
  regions_->add_window(nccl, handle_, region, made->window);
  return std::nullopt;
}

// ---- Operations ---------------------------------------------------------------------------------

[[gnu::flatten]] MaybeFailure start_and_finish(DeviceCommunicator& device,
                                               DeviceCommunicator::Started& one) {
  if (MaybeFailure failure = device.start(one, false)) return failure;
  return device.finish(one, false, std::nullopt);
}

MaybeFailure DeviceCommunicator::start(Started& one, bool is_grouped) {
  one.regions = device_regions::regions_of(*one.operation);
  for (const DeviceRegion& region : one.regions) one.watched.regions.push_back(region.serial);
  if (const Result<void> started = enqueued_.begin_call(*driver_, device_, one.watched);
      !started.ok())
    return make_failure(FailureKind::kTransport, started.error().message);
  MaybeFailure failure;
  if (one.operation->after != nullptr) {
    const Result<void> held = one.operation->after->hold_back(one.operation->stream);
    if (!held.ok()) failure = make_failure(FailureKind::kTransport, held.error().message);
  }
  if (!failure) failure = call_nccl(one, is_grouped);
  if (!failure) return failure;
  enqueued_.end_call(one.watched.event);
  return diagnosis_.with_ras(*failure);
}

MaybeFailure DeviceCommunicator::call_nccl(Started& one, bool is_grouped) {
  const Handle handle = handle_;
  const Caller caller{library_->functions(), *driver_, handle, options_.rank,
                      static_cast<std::int32_t>(options_.rank_names.size())};
  const auto what = [&] {
    return std::string(comm_status::name_of(one.operation->collective.shape.operation));
  };
  std::unique_lock lock(calls_);
  if (is_broken_) return check_for_failure(false);
  // A registration would become part of the graph or invalidate it.
  if (one.returns_when != ReturnWhen::kCaptured)
    regions_->use(library_->functions(), handle, one.regions);
  const CallResult called = start_calls(caller, *one.operation, one.premul_sum);
  // An abort makes calls that hang in NCCL return, with an arbitrary status.
  if (is_broken_) return check_for_failure(false);
  if (called.status != kSuccess && called.status != kInProgress) {
    lock.unlock();
    return diagnosis_.explained(diagnosis_.nccl_error(called.status, what()));
  }
  if (is_grouped) return std::nullopt;
  // Wait until NCCL is idle again: only then is its kernel on the stream.
  if (called.status == kInProgress) {
    lock.unlock();
    Deadline deadline(one.watched.timeout);
    if (MaybeFailure failure = await_nccl(handle, deadline, what())) return failure;
    lock.lock();
    if (is_broken_) return check_for_failure(false);
  }
  return finish_nccl(one);
}

MaybeFailure DeviceCommunicator::finish(Started& one, bool is_grouped, MaybeFailure failure) {
  if (is_grouped && !failure) {
    Deadline deadline(one.watched.timeout);
    failure = await_nccl(handle_, deadline, "a group of operations");
    const std::lock_guard lock(calls_);
    if (!failure && is_broken_) failure = check_for_failure(false);
    if (!failure) failure = finish_nccl(one);
  }
  const Event event = one.watched.event;
  if (!failure && one.returns_when != ReturnWhen::kCaptured) {
    const Result<void> recorded = driver_->record(event, one.operation->stream);
    if (!recorded.ok()) failure = make_failure(FailureKind::kTransport, recorded.error().message);
  }
  if (!failure && one.returns_when == ReturnWhen::kEnqueued) {
    enqueued_.watch(std::move(one.watched));
    return failure;
  }
  if (!failure && one.returns_when == ReturnWhen::kDone) {
    Deadline deadline(one.watched.timeout);
    failure = await_event(event, deadline, &one.watched);
  }
  enqueued_.end_call(event);
  if (one.returns_when == ReturnWhen::kCaptured) {
    has_graphs_ = true;
    enqueued_.watch_always();
  }
  if (failure) failure = diagnosis_.with_ras(*failure);
  return failure;
}

// Frees the reduction and puts the operation's copy on the stream. Requires calls_.
MaybeFailure DeviceCommunicator::finish_nccl(const Started& one) {
  const Caller caller{library_->functions(), *driver_, handle_, options_.rank,
                      static_cast<std::int32_t>(options_.rank_names.size())};
  if (one.premul_sum >= 0) library_->functions().free_op(one.premul_sum, handle_);
  const CallResult finished = finish_calls(caller, *one.operation);
  if (finished.error.empty()) return std::nullopt;
  return make_failure(FailureKind::kTransport, finished.error);
}

// ---- Waits --------------------------------------------------------------------------------------

MaybeFailure DeviceCommunicator::await_nccl(Handle handle, Deadline& deadline,
                                            const std::string& what) {
  Pause pause;
  deadline.start();
  auto checked_at = steady_now();
  while (true) {
    Status status = kSuccess;
    {
      const std::lock_guard lock(handle_mutex_);
      if (!is_broken_) {
        const Status queried = library_->functions().get_async_error(handle, &status);
        if (queried != kSuccess) status = queried;
      }
    }
    if (is_broken_) return check_for_failure(false);
    if (status == kSuccess) return std::nullopt;
    if (status != kInProgress) return diagnosis_.explained(diagnosis_.nccl_error(status, what));
    const auto now = steady_now();
    if (now - checked_at >= kQueryInterval) {
      checked_at = now;
      if (const MaybeFailure found = check_for_failure(false)) return found;
      if (deadline.left() <= nanoseconds::zero()) {
        return diagnosis_.stuck_wait(what, deadline.waited(), handle);
      }
    }
    pause.rest(kLongestSleep);
  }
}

MaybeFailure DeviceCommunicator::await_event(Event event, Deadline& deadline,
                                             const Enqueued* operation) {
  Pause pause;
  deadline.start();
  auto checked_at = steady_now();
  while (true) {
    const Result<bool> is_done = driver_->is_done(event);
    if (!is_done.ok()) {
      return make_failure(FailureKind::kTransport,
                          "communicator " + options_.name + ": " + is_done.error().message);
    }
    // An operation that ended because of an abort does not count as done.
    if (*is_done) return is_broken_ ? check_for_failure(false) : std::nullopt;
    const auto now = steady_now();
    if (now - checked_at >= kQueryInterval) {
      checked_at = now;
      if (const MaybeFailure found = check_for_failure(true)) return found;
      if (deadline.left() <= nanoseconds::zero()) {
        return operation != nullptr
                   ? diagnosis_.late(*operation)
                   : diagnosis_.timeout("a copy", "not finished on the device in time");
      }
    }
    // Sleep briefly, so that the end of an operation is noticed soon.
    pause.rest(microseconds(200));
  }
}

MaybeFailure DeviceCommunicator::await_stream(Stream stream, int device, Deadline& deadline) {
  const Result<Event> event = enqueued_.take_event(*driver_, device);
  const Result<void> recorded = event.ok() ? driver_->record(*event, stream) : event.error();
  if (!recorded.ok()) return make_failure(FailureKind::kOther, recorded.error().message);
  MaybeFailure failure = await_event(*event, deadline, nullptr);
  enqueued_.give_back(*event);
  return failure;
}

MaybeFailure DeviceCommunicator::check(const Enqueued* oldest) {
  if (const MaybeFailure found = check_for_failure(true)) return found;
  if (oldest == nullptr || steady_now() < oldest->since + oldest->timeout) return std::nullopt;
  return diagnosis_.with_ras(diagnosis_.late(*oldest));
}

MaybeFailure DeviceCommunicator::check_for_failure(bool queries_nccl) {
  if (const MaybeFailure found = options_.owner->find_failure()) return found;
  if (is_broken_) return make_failure(FailureKind::kAborted, "the communicator was aborted");
  if (!queries_nccl) return std::nullopt;
  Status status = kSuccess;
  {
    const std::lock_guard lock(handle_mutex_);
    if (handle_ == nullptr) return std::nullopt;
    const Status queried = library_->functions().get_async_error(handle_, &status);
    if (queried != kSuccess) status = queried;
  }
  if (status == kSuccess || status == kInProgress) return std::nullopt;
  return diagnosis_.explained(diagnosis_.nccl_error(status, "reported while an operation ran"));
}

MaybeFailure DeviceCommunicator::call(const std::string& what, steady_clock::time_point deadline,
                                      std::function<void()> call, std::function<void()> late) {
  AbandonableCall abandonable;
  abandonable.call = std::move(call);
  abandonable.late = std::move(late);
  abandonable.what = "NCCL of communicator " + options_.name + ": " + what;
  abandonable.deadline = deadline;
  abandonable.source = this;
  return call_abandonable(std::move(abandonable));
}

// ---- The end ------------------------------------------------------------------------------------

MaybeFailure DeviceCommunicator::end() {
  enqueued_.drain_and_stop();
  if (handle_ == nullptr) return std::nullopt;
  // ncclCommFinalize may wait for a rank that has aborted.
  if (is_broken_ || device_ < 0 || check_for_failure(false)) {
    abort();
    return std::nullopt;
  }
  const Finalized finalized = finalize();
  if (finalized != Finalized::kFailed) handle_ = nullptr;
  // The graphs may be freed later, by the end of the process at the latest.
  if (finalized == Finalized::kDone || (finalized == Finalized::kNotYet && has_graphs_)) {
    return std::nullopt;
  }
  std::string text =
      "not finished " + time_text(kFinalizeTimeout) +
      " after this rank's last operation; operations that other ranks had not finished may be "
      "lost";
  if (finalized == Finalized::kFailed) text = "NCCL failed, so it was aborted";
  const std::optional<std::string> why = finalized == Finalized::kFailed ? abort() : taint();
  return diagnosis_.timeout("finalize", text + (why ? "; " + *why : ""));
}

// Everything on the streams is done, so NCCL waits only for graphs that contain operations. An
// abort must not interrupt that wait, because both would free the communicator.
DeviceCommunicator::Finalized DeviceCommunicator::finalize() {
  struct Ended {
    std::atomic<bool> is_ok{false};
  };
  const auto ended = std::make_shared<Ended>();
  AbandonableCall abandonable;
  abandonable.call = [ended, handle = handle_.load(), nccl = &library_->functions(),
                      driver = driver_, device = device_.load(), regions = regions_] {
    const Driver::Current current(*driver, device);
    {
      const std::lock_guard lock(regions->mutex);
      regions->end();
    }
    Status status = nccl->finalize(handle);
    while (status == kInProgress) {
      std::this_thread::sleep_for(milliseconds(1));
      if (nccl->get_async_error(handle, &status) != kSuccess) return;
    }
    ended->is_ok = status == kSuccess && nccl->destroy(handle) == kSuccess;
  };
  abandonable.what = "NCCL of communicator " + options_.name + ": finalize";
  abandonable.deadline = steady_now() + (has_graphs_ ? kGraphTimeout : kFinalizeTimeout);
  if (call_abandonable(std::move(abandonable))) return Finalized::kNotYet;
  return ended->is_ok ? Finalized::kDone : Finalized::kFailed;
}

std::optional<std::string> DeviceCommunicator::abort() {
  is_broken_ = true;
  // Polls, because ThreadSanitizer does not understand timed mutexes.
  std::unique_lock calls(calls_, std::try_to_lock);
  const auto deadline = steady_now() + kCallTimeout;
  while (!calls.owns_lock() && steady_now() < deadline) {
    std::this_thread::sleep_for(kQueryInterval);
    static_cast<void>(calls.try_lock());
  }
  const std::lock_guard lock(handle_mutex_);
  if (handle_ == nullptr) return taint();
  FailedCommunicator broken{handle_.load(), &library_->functions(), driver_, chosen_, regions_, {}};
  broken.kept.assign(creations_.begin(), creations_.end());
  handle_ = nullptr;
  if (device_ >= 0 && options_.owner->is_revoked_after_death()) {
    if (auto revoked = RevokedHandle::revoke(broken)) {
      // The revoke has ended calls that hung in NCCL.
      const Driver::Current current(*driver_, device_);
      if (calls.owns_lock() || calls.try_lock()) regions_->end();
      regions_->forget();
      options_.owner->keep_revoked(std::move(revoked));
      return taint();
    }
    if (is_tainted()) return taint();
  }
  return abort_failed(broken);
}

}  // namespace ivy::comm::nccl
