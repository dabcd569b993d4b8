// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_request.h"

#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "launcher/links/this_host.h"
#include "proto/contract/text.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

// Limit of the host names in one request (agent.proto).
constexpr std::size_t kMaxHostsSent = 64;

std::string own_user() { return own_account().empty() ? std::to_string(geteuid()) : own_account(); }

}  // namespace

std::string command_sha256(const std::vector<std::string>& command) {
  std::string all;
  for (const std::string& argument : command) all.append(argument.c_str(), argument.size() + 1);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(all.data()), all.size(), digest);
  return hexadecimal({reinterpret_cast<const char*>(digest), sizeof digest});
}

agent::v1::JobDescription job_description(const Options& options) {
  agent::v1::JobDescription job;
  job.set_user(own_user());
  job.set_launcher_host(own_host_name());
  // Already cut to --nnodes and --spares.
  const std::size_t count = options.hosts.size();
  for (std::size_t i = 0; i < std::min(count, kMaxHostsSent); ++i) {
    job.add_hosts(options.hosts[i].name);
  }
  if (count == 0) job.add_hosts("localhost");
  job.set_host_count(static_cast<std::uint32_t>(std::max<std::size_t>(count, 1)));
  job.set_command_sha256(command_sha256(options.command));
  if (!options.command.empty()) job.set_program(options.command.front());
  job.set_name(options.name);
  return job;
}

}  // namespace ivy
