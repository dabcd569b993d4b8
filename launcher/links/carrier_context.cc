#include "launcher/links/carrier_context.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <fstream>
#include <sstream>

namespace ivy {

void Slots::acquire(std::weak_ptr<void> wanted, std::function<void(Ticket)> granted) {
  waiting_.push_back({std::move(wanted), std::move(granted)});
  boost::asio::post(loop_, [self = std::weak_ptr<Slots*>(self_)] {
    if (const auto alive = self.lock()) (*alive)->grant_next();
  });
}

void Slots::grant_next() {
  while (free_ > 0 && !waiting_.empty()) {
    const Waiter waiter = std::move(waiting_.front());
    waiting_.pop_front();
    const std::shared_ptr<void> wanted = waiter.wanted.lock();
    if (!wanted) continue;
    --free_;
    // The ticket's own pointer means nothing; its deleter gives the place back.
    Ticket ticket(static_cast<void*>(nullptr), [this, self = std::weak_ptr<Slots*>(self_)](void*) {
      if (self.expired()) return;
      ++free_;
      boost::asio::post(loop_, [self] {
        if (const auto alive = self.lock()) (*alive)->grant_next();
      });
    });
    waiter.granted(std::move(ticket));
  }
}

CarrierContext::CarrierContext(boost::asio::io_context& loop, const Options& options,
                               std::string node_binary)
    : loop_(loop),
      options_(options),
      node_binary_(std::move(node_binary)),
      handshakes_(loop, std::max(1, options.fanout)),
      terminal_(loop, 1),
      random_(std::random_device{}()) {}

Result<NodeUpload*> CarrierContext::upload() {
  if (!upload_) {
    const std::string directory = node_binary_.substr(0, node_binary_.rfind('/'));
    upload_ = IVY_TRY(NodeUpload::load(directory + "/../lib/ivyrun"));
  }
  return &*upload_;
}

const SshConfigFiles& CarrierContext::ssh_config() {
  if (!ssh_config_) ssh_config_ = read_ssh_config_files();
  return *ssh_config_;
}

bool CarrierContext::known_hosts_needs_client(const std::string& path) {
  const auto checked = known_hosts_checked_.find(path);
  if (checked != known_hosts_checked_.end()) return checked->second;
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return known_hosts_checked_[path] = ivy::known_hosts_needs_client(text.str());
}

boost::asio::thread_pool& CarrierContext::resolvers() {
  if (!resolvers_) resolvers_ = std::make_unique<boost::asio::thread_pool>(kResolverThreads);
  return *resolvers_;
}

double CarrierContext::jitter() {
  return std::uniform_real_distribution<double>(0.5, 1.5)(random_);
}

}  // namespace ivy
