// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/host_exchange.h"

#include <cstddef>
#include <vector>

namespace ivy {
namespace {

// A queue has a thread while a fence of its group is in progress.
constexpr std::size_t kMaxQueues = 256;
// Group names never contain a slash.
constexpr const char* kPublishing = "/publish";
constexpr const char* kFetching = "/fetch";

std::string key_of(std::uint32_t rank) { return "ivy/pmix-put/" + std::to_string(rank); }

}  // namespace

HostExchange::HostExchange(std::uint32_t host, std::uint32_t hosts,
                           std::optional<store::ClientOptions> store)
    : host_(host), hosts_(hosts), options_(std::move(store)) {}

HostExchange::~HostExchange() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  if (first_connect_.joinable()) first_connect_.join();
  {
    const std::lock_guard lock(store_mutex_);
    if (client_ != nullptr) client_->cancel();
  }
  std::unique_lock lock(mutex_);
  queue_ended_.wait(lock, [this] { return queues_.empty(); });
  join_ended();
}

void HostExchange::warm_up() {
  const std::lock_guard lock(mutex_);
  if (!options_ || hosts_ == 1 || first_connect_.joinable()) return;
  // Ignores an error: the first fence tries again and reports it.
  first_connect_ = std::thread([this] { static_cast<void>(connected().ok()); });
}

bool HostExchange::enqueue_fence(const std::string& group, Task task) {
  const std::lock_guard lock(mutex_);
  if (!queues_.contains(group) && queues_.size() >= kMaxQueues) return false;
  add_task(group, std::move(task));
  return true;
}

void HostExchange::enqueue(const std::string& name, Task task) {
  const std::lock_guard lock(mutex_);
  add_task(name, std::move(task));
}

void HostExchange::add_task(const std::string& name, Task task) {
  join_ended();
  const bool is_new = !queues_.contains(name);
  Queue& queue = queues_[name];
  queue.tasks.push_back(std::move(task));
  if (is_new) queue.thread = std::thread([this, name] { work(name); });
}

void HostExchange::work(const std::string& name) {
  std::unique_lock lock(mutex_);
  const auto queue = queues_.find(name);
  while (!is_over_ && !queue->second.tasks.empty()) {
    const Task task = std::move(queue->second.tasks.front());
    queue->second.tasks.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
  ended_.push_back(std::move(queue->second.thread));
  queues_.erase(queue);
  queue_ended_.notify_all();
}

void HostExchange::join_ended() {
  for (std::thread& thread : ended_) thread.join();
  ended_.clear();
}

void HostExchange::fence(FenceGroup group, std::string own, BlobAnswer answer) {
  const std::string name = group.name;
  const Task task = [this, group = std::move(group), own = std::move(own), answer] {
    answer(synchronize(group, own));
  };
  if (!enqueue_fence(name, task))
    answer(Error{Code::kResourceExhausted, "ranks synchronize in more than " +
                                               std::to_string(kMaxQueues) +
                                               " groups at the same time"});
}

Result<std::string> HostExchange::synchronize(const FenceGroup& group, const std::string& own) {
  const std::vector<std::uint32_t>& hosts = group.hosts;
  if (hosts.size() == 1 && hosts.front() == host_) return own;
  IVY_CHECK(connected());
  const bool is_whole_job = group.name.empty() && hosts.size() == hosts_;
  const std::string name = group.name.empty() ? "all" : group.name;
  const std::vector<std::string> blobs =
      IVY_TRY(is_whole_job ? fence_->gather(own) : fence_->gather_among(hosts, name, own));
  std::string all;
  for (const std::string& blob : blobs) all += blob;
  if (group.is_last) IVY_CHECK(fence_->forget(hosts, name));
  return all;
}

void HostExchange::publish(std::uint32_t rank, std::string blob) {
  enqueue(kPublishing, [this, rank, blob = std::move(blob)] {
    // An error means that the store is lost, which the next fence reports.
    const Result<store::Client*> store = connected();
    if (store.ok()) static_cast<void>((*store)->set_once(key_of(rank), blob).ok());
  });
}

void HostExchange::fetch(std::uint32_t rank, BlobAnswer answer) {
  enqueue(kFetching, [this, rank, answer = std::move(answer)] {
    const Result<store::Client*> store = connected();
    if (!store.ok()) return answer(store.error());
    answer((*store)->wait_get(key_of(rank), store::Client::Milliseconds::max()));
  });
}

Result<store::Client*> HostExchange::connected() {
  if (!options_)
    return Error{
        Code::kFailedPrecondition,
        "ranks on several hosts synchronize through the job's store, which this job does not have",
        "leave out --no-store"};
  const std::lock_guard lock(store_mutex_);
  if (client_ == nullptr) {
    client_ = IVY_TRY(store::Client::connect(*options_));
    fence_ = std::make_unique<store::HostFence>(*client_, "pmix",
                                                store::HostFence::HostPosition{host_, hosts_});
  }
  return client_.get();
}

}  // namespace ivy
