// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/serve_options.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "proto/contract/text.h"
#include "proto/os/user_directories.h"

namespace ivy::store {
namespace {

using Field =
    std::variant<std::string ServeOptions::*, int ServeOptions::*, std::uint32_t ServeOptions::*,
                 std::uint64_t ServeOptions::*, std::vector<int> ServeOptions::*,
                 std::vector<std::string> ServeOptions::*>;
// Rows without a text are options for the supervisor, which starts this program with descriptors.
struct Option {
  std::string_view name;
  Field field;
  std::string_view value = {};
  std::string_view text = {};
};

const Option kOptions[] = {
    {"--job", &ServeOptions::job_id, "HEX32", "the job's id"},
    {"--token-file", &ServeOptions::token_file, "FILE", "its secret: 32 bytes, mode 0400"},
    {"--listen", &ServeOptions::listen, "ADDRESS:PORT",
     "numeric address to listen on; port 0: any free port"},
    {"--torch", &ServeOptions::torch, "ADDRESS:PORT",
     "also serve PyTorch's TCPStore there; it cannot check the token"},
    {"--torch-peers", &ServeOptions::torch_peers, "A,B",
     "numeric addresses that may use it, in addition to loopback"},
    {"--torch-connections", &ServeOptions::torch_connections, "N",
     "limit of PyTorch's connections in total (default 16384)"},
    {"--generation", &ServeOptions::generation, "N", "attempt of the job (default 0)"},
    {"--stall-seconds", &ServeOptions::stall_seconds, "N",
     "report which client waits for which after N seconds without progress"},
    {"--token-fd", &ServeOptions::token_fd},
    {"--owner-fd", &ServeOptions::owner_fd},
    {"--control-fd", &ServeOptions::control_fd},
    {"--native-fd", &ServeOptions::native_fds},
    {"--torch-fd", &ServeOptions::torch_fds},
};

// Options of earlier versions and their replacements.
struct RemovedOption {
  std::string_view name;
  std::string_view instead;
};
const RemovedOption kRemovedOptions[] = {
    {"--wal", "the store keeps nothing on disk"},
    {"--tokens", "run one store per job, with --job and --token-file"},
};

bool take(std::string_view text, std::string& field) {
  field = text;
  return true;
}

template <class Number>
bool take(std::string_view text, Number& field) {
  const std::optional<Number> number = to_number<Number>(text);
  field = number.value_or(0);
  return number.has_value();
}

bool take(std::string_view text, std::vector<int>& field) {
  return take(text, field.emplace_back());
}

// Splits a list at its commas.
bool take(std::string_view text, std::vector<std::string>& field) {
  for (field.clear(); !text.empty();) field.emplace_back(take_part(text, ','));
  return true;
}

Result<void> take_option(std::string_view name, std::string_view value, ServeOptions& options) {
  for (const RemovedOption& removed : kRemovedOptions)
    if (removed.name == name)
      return wrong_option(std::string(name) + " was removed: " + std::string(removed.instead));
  for (const Option& option : kOptions) {
    if (option.name != name) continue;
    if (std::visit([&](auto field) { return take(value, options.*field); }, option.field))
      return {};
    return wrong_option(std::string(name) + " " + std::string(value) + ": write a number");
  }
  return wrong_option("unknown option " + std::string(name));
}

}  // namespace

CommandPage serve_page() {
  CommandPage page;
  page.name = "ivy-rendezvous";
  page.summary = "a key-value store for the ranks of a job";
  page.usages = {
      "ivy-rendezvous serve --job HEX32 --token-file FILE --listen ADDRESS:PORT [options]",
      "ivy-rendezvous --version"};
  page.description =
      "A store for one job. ivyrun starts its own; use this for jobs that are started without "
      "it.";
  page.examples = {
      {"ivy-rendezvous serve --job $(openssl rand -hex 16) --token-file ./token "
       "--listen 0.0.0.0:7300",
       "the store of one job"}};
  PageSection& section = page.sections.emplace_back();
  section.topic = "options";
  section.title = "Options";
  for (const Option& option : kOptions)
    if (!option.text.empty())
      section.options.push_back(
          {{std::string(option.name)}, std::string(option.value), std::string(option.text)});
  page.width = help_width();
  page.closing = "See docs/store.md.\n";
  return page;
}

Error wrong_option(std::string what) {
  return Error{Code::kInvalidArgument, std::move(what), "ivy-rendezvous --help lists the options"};
}

Result<ServeOptions> parse_serve_options(const std::vector<std::string>& words) {
  ServeOptions options;
  const std::string_view verb = words.empty() ? "" : std::string_view(words[0]);
  if (verb != "serve") return wrong_option("the only verb is serve");
  for (std::size_t i = 1; i < words.size(); i += 2) {
    if (i + 1 == words.size()) return wrong_option(words[i] + " needs a value");
    IVY_CHECK(take_option(words[i], words[i + 1], options));
  }
  if (!is_job_id(options.job_id)) return wrong_option("--job needs 32 hexadecimal digits");
  if (options.token_file.empty() && options.token_fd < 0)
    return wrong_option("--token-file is missing");
  if (options.listen.empty() && options.native_fds.empty())
    return wrong_option("--listen is missing");
  return options;
}

}  // namespace ivy::store
