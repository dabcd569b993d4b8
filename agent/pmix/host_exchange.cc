#include "agent/pmix/host_exchange.h"

#include <cstddef>
#include <vector>

namespace ivy {
namespace {

// Each has a thread. MPI makes a group for a few communicators at most.
constexpr std::size_t kMostGroups = 256;

}  // namespace

HostExchange::HostExchange(std::uint32_t host, std::uint32_t hosts,
                           std::optional<store::ClientOptions> store)
    : host_(host), hosts_(hosts), options_(std::move(store)) {}

HostExchange::~HostExchange() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    for (auto& [name, line] : lines_) line.changed.notify_all();
  }
  if (first_connect_.joinable()) first_connect_.join();
  {
    const std::lock_guard lock(store_mutex_);
    if (client_ != nullptr) client_->cancel();
  }
  for (auto& [name, line] : lines_) line.thread.join();
}

void HostExchange::warm_up() {
  const std::lock_guard lock(mutex_);
  if (!options_ || hosts_ == 1 || first_connect_.joinable()) return;
  // An error is said to the first fence, which tries again.
  first_connect_ = std::thread([this] { static_cast<void>(store_fence().ok()); });
}

void HostExchange::fence(FenceGroup group, std::string own, BlobAnswer answer) {
  const std::lock_guard lock(mutex_);
  const bool is_new = !lines_.contains(group.name);
  if (is_new && lines_.size() >= kMostGroups)
    return answer(Error{Code::kResourceExhausted,
                        "ranks meet in more than " + std::to_string(kMostGroups) + " groups"});
  Line& line = lines_[group.name];
  line.turns.push_back({std::move(group), std::move(own), std::move(answer)});
  if (is_new) line.thread = std::thread([this, &line] { keep(line); });
  line.changed.notify_all();
}

void HostExchange::keep(Line& line) {
  std::unique_lock lock(mutex_);
  for (;;) {
    line.changed.wait(lock, [&] { return is_over_ || !line.turns.empty(); });
    if (is_over_) return;
    const Turn turn = std::move(line.turns.front());
    line.turns.pop_front();
    lock.unlock();
    turn.answer(meet(turn));
    lock.lock();
  }
}

Result<std::string> HostExchange::meet(const Turn& turn) {
  const std::vector<std::uint32_t>& hosts = turn.group.hosts;
  if (hosts.size() == 1 && hosts.front() == host_) return turn.own;
  store::HostFence* const fence = IVY_TRY(store_fence());
  const bool is_whole_job = turn.group.name.empty() && hosts.size() == hosts_;
  const std::string name = turn.group.name.empty() ? "all" : turn.group.name;
  const std::vector<std::string> blobs =
      IVY_TRY(is_whole_job ? fence->gather(turn.own) : fence->gather_among(hosts, name, turn.own));
  std::string all;
  for (const std::string& blob : blobs) all += blob;
  return all;
}

Result<store::HostFence*> HostExchange::store_fence() {
  if (!options_)
    return Error{Code::kFailedPrecondition,
                 "ranks of several hosts meet through the job's store, which this job has not",
                 "leave out --no-store"};
  const std::lock_guard lock(store_mutex_);
  if (fence_ == nullptr) {
    client_ = IVY_TRY(store::Client::connect(*options_));
    fence_ = std::make_unique<store::HostFence>(*client_, "pmix",
                                                store::HostFence::Place{host_, hosts_});
  }
  return fence_.get();
}

}  // namespace ivy
