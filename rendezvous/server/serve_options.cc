#include "rendezvous/server/serve_options.h"

#include <algorithm>
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
struct Option {
  std::string_view name;
  Field field;
};

const Option kOptions[] = {
    {"--job", &ServeOptions::job_id},
    {"--token-file", &ServeOptions::token_file},
    {"--token-fd", &ServeOptions::token_fd},
    {"--owner-fd", &ServeOptions::owner_fd},
    {"--generation", &ServeOptions::generation},
    {"--control-fd", &ServeOptions::control_fd},
    {"--native-fd", &ServeOptions::native_fds},
    {"--torch-fd", &ServeOptions::torch_fds},
    {"--torch-peers", &ServeOptions::torch_peers},
    {"--torch-connections", &ServeOptions::torch_connections},
    {"--root", &ServeOptions::root},
    {"--listen", &ServeOptions::listen},
    {"--torch", &ServeOptions::torch},
    {"--stall-seconds", &ServeOptions::stall_seconds},
    {"--wal", &ServeOptions::wal},
    {"--tokens", &ServeOptions::tokens},
    {"--max-jobs", &ServeOptions::jobs},
    {"--job-connections", &ServeOptions::job_connections},
    {"--job-memory", &ServeOptions::job_memory_mib},
    {"--idle-seconds", &ServeOptions::idle_seconds},
    {"--adopt-fd", &ServeOptions::adopt_fd},
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
  for (field.clear(); !text.empty();
       text.remove_prefix(std::min(text.find(','), text.size() - 1) + 1))
    field.emplace_back(text.substr(0, text.find(',')));
  return true;
}

Result<void> take_option(std::string_view name, std::string_view value, ServeOptions& options) {
  for (const Option& option : kOptions) {
    if (option.name != name) continue;
    if (std::visit([&](auto field) { return take(value, options.*field); }, option.field))
      return {};
    return wrong_option(std::string(name) + " " + std::string(value) + ": a number is needed");
  }
  return wrong_option("unknown option " + std::string(name));
}

}  // namespace

const char* const kServeHelp =
    "usage: ivy-rendezvous serve --job HEX32 --token-file FILE --listen ADDRESS:PORT [options]\n"
    "       ivy-rendezvous serve --tokens DIR --listen ADDRESS:PORT [options]\n"
    "or:    ivy-rendezvous leaf --root ADDRESS:PORT and the options of one job\n"
    "or:    ivy-rendezvous --version\n"
    "\n"
    "A store for one job, or for all jobs that have a token file in DIR (named by the job's id,\n"
    "32 bytes, mode 0400; a file that appears is served at once, a job whose file goes is over).\n"
    "\n"
    "  --listen ADDRESS:PORT      numeric; port 0: any\n"
    "  --wal DIR                  keep what was acknowledged in DIR/JOB.wal: it outlives kill -9.\n"
    "                             Without it a store that ends has lost everything, and its\n"
    "                             clients are told so (EpochLost)\n"
    "for one job:\n"
    "  --torch ADDRESS:PORT       serve PyTorch's TCPStore there; it knows no token\n"
    "  --torch-peers A,B          numeric addresses that may, besides loopback\n"
    "  --torch-connections N      of its clients together (default 16384)\n"
    "  --generation N             the attempt that is served (default 0)\n"
    "  --stall-seconds N          say who waits for whom when nothing has moved for so long\n"
    "for many jobs:\n"
    "  --max-jobs N               at a time (default 256)\n"
    "  --job-memory MIB           of each (default 256); half of it for keys and values\n"
    "  --job-connections N        of each (default 4096)\n"
    "  --idle-seconds N           without a connection, until a job's memory is freed (default "
    "600)\n";

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
