// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/mpi_server_options.h"

#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/user_directories.h"

namespace ivy {
namespace {

// PMIx numbers ranks with 32 bits, of which the highest have special meanings.
constexpr std::uint64_t kMaxRanks = 1u << 24;

using Words = std::map<std::string, std::string, std::less<>>;

Error wrong(const std::string& what) {
  return Error{Code::kInvalidArgument, "it is started by ivyrun's supervisor: " + what};
}

Result<Words> words_by_option(const std::vector<std::string>& arguments) {
  constexpr std::string_view kOptions[] = {
      "--listen-fd",      "--loopback-fd", "--job",       "--generation", "--host",      "--hosts",
      "--ranks-on-hosts", "--host-names",  "--directory", "--store",      "--token-file"};
  Words words;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    bool is_known = false;
    for (const std::string_view option : kOptions) is_known |= option == arguments[i];
    if (!is_known) return wrong("unknown option \"" + arguments[i] + "\"");
    if (i + 1 == arguments.size()) return wrong(arguments[i] + " has no value");
    words[arguments[i]] = arguments[i + 1];
  }
  return words;
}

template <class Number>
Result<Number> number_of(const Words& words, std::string_view option) {
  const auto found = words.find(option);
  if (found == words.end()) return wrong(std::string(option) + " is missing");
  const std::optional<Number> number = to_number<Number>(found->second);
  if (!number) return wrong(std::string(option) + " \"" + found->second + "\" is not a number");
  return *number;
}

std::vector<std::string> parts_of(const Words& words, std::string_view option) {
  const auto found = words.find(option);
  std::vector<std::string> parts;
  if (found == words.end()) return parts;
  std::string_view rest = found->second;
  while (!rest.empty()) parts.emplace_back(take_part(rest, ','));
  return parts;
}

std::string text_of(const Words& words, std::string_view option) {
  const auto found = words.find(option);
  return found == words.end() ? std::string() : found->second;
}

Result<std::vector<std::uint32_t>> rank_counts(const Words& words) {
  std::vector<std::uint32_t> counts;
  std::uint64_t all = 0;
  for (const std::string& part : parts_of(words, "--ranks-on-hosts")) {
    const auto count = to_number<std::uint32_t>(part);
    if (!count) return wrong("--ranks-on-hosts: \"" + part + "\" is not a number");
    counts.push_back(*count);
    all += *count;
  }
  if (all == 0 || all > kMaxRanks)
    return wrong("--ranks-on-hosts: a job has 1 to " + std::to_string(kMaxRanks) + " ranks");
  return counts;
}

Result<void> check(const MpiServerOptions& options, std::uint32_t hosts) {
  if (options.listen_fd < 0) return wrong("--listen-fd is negative");
  if (!is_job_id(options.job_id)) return wrong("--job \"" + options.job_id + "\" is not a job id");
  if (options.ranks_on_hosts.size() != hosts || options.host_names.size() != hosts)
    return wrong("--hosts " + std::to_string(hosts) + " differs from the number of " +
                 (options.host_names.size() != hosts ? "--host-names" : "--ranks-on-hosts"));
  if (options.host >= hosts) return wrong("--host must be less than --hosts");
  if (!options.directory.starts_with('/')) return wrong("--directory is not an absolute path");
  if (!options.store.empty() && options.token_file.empty())
    return wrong("--store needs --token-file");
  return {};
}

}  // namespace

Result<MpiServerOptions> parse_mpi_server_options(const std::vector<std::string>& arguments) {
  const Words words = IVY_TRY(words_by_option(arguments));
  MpiServerOptions options;
  options.listen_fd = IVY_TRY(number_of<int>(words, "--listen-fd"));
  if (words.contains("--loopback-fd"))
    options.loopback_fd = IVY_TRY(number_of<int>(words, "--loopback-fd"));
  options.generation = IVY_TRY(number_of<std::uint32_t>(words, "--generation"));
  options.host = IVY_TRY(number_of<std::uint32_t>(words, "--host"));
  const std::uint32_t hosts = IVY_TRY(number_of<std::uint32_t>(words, "--hosts"));
  options.ranks_on_hosts = IVY_TRY(rank_counts(words));
  options.host_names = parts_of(words, "--host-names");
  options.job_id = text_of(words, "--job");
  options.directory = text_of(words, "--directory");
  options.store = text_of(words, "--store");
  options.token_file = text_of(words, "--token-file");
  IVY_CHECK(check(options, hosts));
  return options;
}

}  // namespace ivy
