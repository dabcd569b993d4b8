#include "rendezvous/server/pmi_options.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "proto/contract/text.h"

namespace ivy::store {
namespace {

// More hosts, and more ranks on each, than any job has.
constexpr std::uint32_t kMost = 1u << 20;

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const std::optional<Number> read = to_number<Number>(text);
  if (read) number = *read;
  return read.has_value();
}

std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  for (; !text.empty(); text.remove_prefix(std::min(text.find(','), text.size() - 1) + 1))
    parts.emplace_back(text.substr(0, text.find(',')));
  return parts;
}

bool read_ranks(std::string_view text, std::vector<std::uint32_t>& ranks) {
  for (const std::string& part : parts_of(text)) {
    std::uint32_t number = 0;
    if (!read_number(part, number) || number > kMost) return false;
    ranks.push_back(number);
  }
  return !ranks.empty();
}

bool take(std::string_view name, std::string_view value, PmiOptions& options, std::size_t& hosts) {
  if (name == "--listen-fd") return read_number(value, options.listen_fd);
  if (name == "--loopback-fd") return read_number(value, options.loopback_fd);
  if (name == "--generation") return read_number(value, options.generation);
  if (name == "--host") return read_number(value, options.host);
  if (name == "--hosts") return read_number(value, hosts);
  if (name == "--ranks-on-hosts") return read_ranks(value, options.ranks_on_hosts);
  if (name == "--host-names") options.host_names = parts_of(value);
  for (const auto& [word, field] :
       {std::pair("--job", &PmiOptions::job_id), std::pair("--directory", &PmiOptions::directory),
        std::pair("--store", &PmiOptions::store),
        std::pair("--token-file", &PmiOptions::token_file)}) {
    if (name != word) continue;
    options.*field = value;
    return true;
  }
  return name == "--host-names";
}

Error wrong(const std::string& what) { return Error{Code::kInvalidArgument, what}; }

}  // namespace

Result<PmiOptions> parse_pmi_options(int argc, const char* const* argv) {
  PmiOptions options;
  std::size_t hosts = 0;
  for (int i = 0; i < argc; i += 2) {
    if (i + 1 == argc) return wrong(std::string(argv[i]) + " needs a value");
    if (!take(argv[i], argv[i + 1], options, hosts))
      return wrong(std::string(argv[i]) + " " + argv[i + 1] + " is not understood");
  }
  const std::size_t count = options.ranks_on_hosts.size();
  if (options.listen_fd < 0 || options.job_id.empty())
    return wrong("--listen-fd and --job are needed");
  if (count != hosts || options.host_names.size() != hosts || options.host >= hosts)
    return wrong("--hosts, --host, --ranks-on-hosts and --host-names do not fit together");
  return options;
}

}  // namespace ivy::store
