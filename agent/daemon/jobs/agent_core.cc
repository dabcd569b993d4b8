// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs/agent_core.h"

#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <ctime>
#include <utility>

#include "agent/daemon/jobs/warden_start.h"
#include "agent/daemon/net/agent_log.h"

namespace ivy {
namespace {

constexpr std::uint32_t kProtocol = 1;
// Clients accept messages of 4 MiB. Beyond this, jobs are listed without their descriptions.
constexpr std::size_t kMaxListBytes = 3u << 20;

std::string user_name() {
  const passwd* const entry = getpwuid(geteuid());
  return entry == nullptr ? std::to_string(geteuid()) : std::string(entry->pw_name);
}

std::vector<std::string> bundle_directories(const AgentServiceOptions& options) {
  if (!options.other_bundle_directories)
    return BundleCache::directories_after(options.bundle_directory);
  std::vector<std::string> directories = *options.other_bundle_directories;
  directories.insert(directories.begin(), options.bundle_directory);
  return directories;
}

}  // namespace

Result<std::shared_ptr<AgentCore>> AgentCore::make(boost::asio::io_context& loop,
                                                   AgentServiceOptions options,
                                                   AgentReports& reports) {
  std::shared_ptr<AgentCore> core(new AgentCore(loop, std::move(options)));
  core->registry_ = IVY_TRY(JobRegistry::make(loop, core->options_.state_directory, reports));
  if (core->is_draining())
    reports.warn(
        "still draining, as before this agent was started: no new jobs are accepted until "
        "`ivy-agent drain --undo`");
  core->registry_->check_all();
  return core;
}

AgentCore::AgentCore(boost::asio::io_context& loop, AgentServiceOptions options)
    : loop_(loop),
      options_(std::move(options)),
      bundles_(bundle_directories(options_)),
      jobs_environment_(environment_for_jobs(options_.environment)),
      user_(user_name()),
      started_at_(static_cast<std::int64_t>(std::time(nullptr))),
      files_(std::make_unique<BlockingPool>(
          [&loop](std::function<void()> done) { boost::asio::post(loop, std::move(done)); })) {
  utsname machine{};
  uname(&machine);
  architecture_ = machine.machine;
  host_name_ = machine.nodename;
}

void AgentCore::stop() {
  stopping_ = true;
  const std::set<std::shared_ptr<JobTransport>> transports = std::exchange(transports_, {});
  for (const std::shared_ptr<JobTransport>& transport : transports) transport->hang_up();
}

void AgentCore::close() {
  stop();
  bundle_thread_.join();
  files_.reset();  // Calls that wait for a file system are not resumed.
  registry_.reset();
}

void AgentCore::carry(const JobKey& key, int socket, std::shared_ptr<OpenStream> stream,
                      bool reattached) {
  agent::v1::Opened opened;
  opened.set_version(options_.version);
  opened.set_reattached(reattached);
  opened.set_certificate_expires_at(certificate_expires_at());
  const auto transport =
      std::make_shared<JobTransport>(loop_, key, socket, std::move(stream), *this);
  transports_.insert(transport);
  transport->begin(opened);
}

void AgentCore::transport_ended(JobTransport& transport) {
  transports_.erase(transport.shared_from_this());
}

std::int64_t AgentCore::certificate_expires_at() const {
  return options_.credentials == nullptr ? 0 : options_.credentials->expires_at();
}

void AgentCore::list(agent::v1::ListReply& reply) const {
  std::set<JobKey> attached;
  for (const std::shared_ptr<JobTransport>& transport : transports_) {
    if (transport->has_launcher()) attached.insert(transport->key());
  }
  std::size_t bytes = 0;
  for (const JobKey& key : registry_->jobs()) {
    const JobRecord& record = *registry_->find(key);
    agent::v1::JobEntry* const entry = reply.add_jobs();
    entry->set_job_id(key.job_id);
    entry->set_host(key.host);
    entry->set_opened_at(record.opened_at);
    entry->set_certificate(record.certificate);
    entry->set_attached(attached.contains(key));
    bytes += record.description.size();
    if (bytes > kMaxListBytes || !entry->mutable_job()->ParseFromString(record.description))
      entry->clear_job();
  }
}

void AgentCore::facts(agent::v1::FactsReply& reply) const {
  reply.set_version(options_.version);
  reply.set_protocol(kProtocol);
  reply.set_host_name(host_name_);
  reply.set_user(user_);
  reply.set_architecture(architecture_);
  reply.set_certificate_expires_at(certificate_expires_at());
  reply.set_draining(is_draining());
  reply.set_jobs(static_cast<std::uint32_t>(registry_->size()));
  reply.set_containment(options_.containment);
  reply.set_started_at(started_at_);
}

void AgentCore::stop(const agent::v1::StopRequest& request, const std::string& caller,
                     agent::v1::StopReply& reply) {
  std::optional<std::chrono::milliseconds> grace;
  if (request.has_grace_ms()) grace = std::chrono::milliseconds(request.grace_ms());
  std::uint32_t signalled = 0;
  for (const JobKey& key : registry_->jobs()) {
    if (key.job_id != request.job_id()) continue;
    if (registry_->stop(key, grace)) reply.set_with_grace(reply.with_grace() + 1);
    ++signalled;
  }
  reply.set_supervisors(signalled);
  if (signalled > 0)
    agent_log::notice("stop: job " + request.job_id() + " is being stopped, requested by " +
                      caller);
}

void AgentCore::drain(const agent::v1::DrainRequest& request, agent::v1::DrainReply& reply) {
  registry_->set_draining(!request.undo());
  if (request.stop_jobs() && is_draining()) {
    for (const JobKey& key : registry_->jobs()) registry_->stop(key);
  }
  reply.set_jobs(static_cast<std::uint32_t>(registry_->size()));
  agent_log::notice(std::string("drain: ") +
                    (!is_draining() ? "new jobs are accepted again"
                     : request.stop_jobs()
                         ? "new jobs are rejected, and running jobs are being stopped"
                         : "new jobs are rejected") +
                    "; " + std::to_string(registry_->size()) + " here");
}

}  // namespace ivy
