#include "rendezvous/server/serve_options.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "proto/contract/text.h"
#include "proto/os/user_places.h"

namespace ivy::store {
namespace {

using Field =
    std::variant<std::string ServeOptions::*, int ServeOptions::*, std::uint32_t ServeOptions::*,
                 std::uint64_t ServeOptions::*, std::vector<int> ServeOptions::*,
                 std::vector<std::string> ServeOptions::*>;
// Rows without a text are for the supervisor, which starts this program with descriptors.
struct Option {
  std::string_view name;
  Field field;
  std::string_view value = {};
  std::string_view text = {};
};

const Option kCommonOptions[] = {
    {"--listen", &ServeOptions::listen, "ADDRESS:PORT", "numeric; port 0: any"},
    {"--token-fd", &ServeOptions::token_fd},
    {"--owner-fd", &ServeOptions::owner_fd},
    {"--control-fd", &ServeOptions::control_fd},
    {"--native-fd", &ServeOptions::native_fds},
    {"--torch-fd", &ServeOptions::torch_fds},
    {"--adopt-fd", &ServeOptions::adopt_fd},
};
const Option kJobOptions[] = {
    {"--job", &ServeOptions::job_id, "HEX32", "the job's id"},
    {"--token-file", &ServeOptions::token_file, "FILE", "its secret: 32 bytes, mode 0400"},
    {"--torch", &ServeOptions::torch, "ADDRESS:PORT",
     "serve PyTorch's TCPStore there; it knows no token"},
    {"--torch-peers", &ServeOptions::torch_peers, "A,B",
     "numeric addresses that may, besides loopback"},
    {"--torch-connections", &ServeOptions::torch_connections, "N",
     "of its clients together (default 16384)"},
    {"--generation", &ServeOptions::generation, "N", "the attempt that is served (default 0)"},
    {"--stall-seconds", &ServeOptions::stall_seconds, "N",
     "say who waits for whom when nothing has moved for so long"},
    {"--root", &ServeOptions::root, "ADDRESS:PORT",
     "of leaf: the store that it stands for on its host"},
};
const Option kManyOptions[] = {
    {"--tokens", &ServeOptions::tokens, "DIR",
     "one token file per job, named by the job's id; a file that appears is served at once, a job "
     "whose file goes "
     "is over"},
    {"--max-jobs", &ServeOptions::jobs, "N", "at a time (default 256)"},
    {"--job-memory", &ServeOptions::job_memory_mib, "MIB",
     "of each job (default 256); half of it for keys and values"},
    {"--job-connections", &ServeOptions::job_connections, "N", "of each job (default 4096)"},
    {"--idle-seconds", &ServeOptions::idle_seconds, "N",
     "without a connection, until a job's memory is freed (default 600)"},
};

struct Group {
  std::string_view topic;
  std::string_view title;
  std::span<const Option> options;
};

const Group kGroups[] = {{"common", "For one job and for many", kCommonOptions},
                         {"job", "For one job", kJobOptions},
                         {"jobs", "For many jobs", kManyOptions}};

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
  if (name == "--wal") return wrong_option("--wal is gone: a store keeps nothing on disk");
  for (const Group& group : kGroups) {
    for (const Option& option : group.options) {
      if (option.name != name) continue;
      if (std::visit([&](auto field) { return take(value, options.*field); }, option.field))
        return {};
      return wrong_option(std::string(name) + " " + std::string(value) + ": a number is needed");
    }
  }
  return wrong_option("unknown option " + std::string(name));
}

}  // namespace

CommandPage serve_page() {
  CommandPage page;
  page.name = "ivy-rendezvous";
  page.summary = "a store through which the ranks of a job share values";
  page.usages = {
      "ivy-rendezvous serve --job HEX32 --token-file FILE --listen ADDRESS:PORT [options]",
      "ivy-rendezvous serve --tokens DIR --listen ADDRESS:PORT [options]",
      "ivy-rendezvous leaf --root ADDRESS:PORT and the options of one job",
      "ivy-rendezvous --version"};
  page.description =
      "A store for one job, or for all jobs that have a token file in a directory. ivyrun starts "
      "one by itself;\n"
      "this is for jobs that are started without it.";
  page.examples = {
      {"ivy-rendezvous serve --tokens ./tokens --listen 0.0.0.0:7300", "for many jobs"}};
  for (const Group& group : kGroups) {
    PageSection& section = page.sections.emplace_back();
    section.topic = group.topic;
    section.title = group.title;
    for (const Option& option : group.options)
      if (!option.text.empty())
        section.options.push_back(
            {{std::string(option.name)}, std::string(option.value), std::string(option.text)});
  }
  page.closing = "docs/store.md says more.\n";
  return page;
}

Error wrong_option(std::string what) {
  return Error{Code::kInvalidArgument, std::move(what), "ivy-rendezvous --help shows the options"};
}

Result<ServeOptions> parse_serve_options(int argc, char** argv) {
  ServeOptions options;
  const std::string_view verb = argc < 1 ? "" : argv[0];
  if (verb != "serve" && verb != "leaf") return wrong_option("the verbs are serve and leaf");
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return wrong_option(std::string(argv[i]) + " needs a value");
    IVY_CHECK(take_option(argv[i], argv[i + 1], options));
  }
  if (!options.tokens.empty()) {
    if (options.listen.empty()) return wrong_option("--listen is missing");
    if (!options.job_id.empty() || !options.token_file.empty() || !options.torch.empty())
      return wrong_option("--tokens names the jobs: no --job, --token-file or --torch beside it");
    return options;
  }
  if (!is_job_id(options.job_id)) return wrong_option("--job needs 32 hexadecimal digits");
  if (options.token_file.empty() && options.token_fd < 0)
    return wrong_option("--token-file is missing");
  if (options.listen.empty() && options.native_fds.empty() && options.adopt_fd < 0)
    return wrong_option("--listen is missing");
  if ((verb == "leaf") == options.root.empty())
    return wrong_option("--root, the store's address, belongs to leaf");
  return options;
}

}  // namespace ivy::store
