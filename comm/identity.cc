#include "comm/identity.h"

#include <charconv>

namespace ivy::comm {
namespace {

Result<std::uint32_t> number_of(std::string_view name, const std::string& text) {
  std::uint32_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size()) {
    return Error{Code::kFailedPrecondition,
                 std::string(name) + " is \"" + text + "\" where a number belongs",
                 "start the program with ivyrun, or unset the variable"};
  }
  return value;
}

Result<std::string> text_of(const EnvironmentLookup& environment, std::string_view name) {
  std::optional<std::string> text = environment(name);
  if (!text || text->empty()) {
    return Error{Code::kFailedPrecondition, "IVY_RANK is set but " + std::string(name) + " is not",
                 "start the program with ivyrun, or unset IVY_RANK"};
  }
  return *text;
}

Result<std::uint32_t> number_of(const EnvironmentLookup& environment, std::string_view name) {
  return number_of(name, IVY_TRY(text_of(environment, name)));
}

std::string with_port(const std::string& address) {
  return (address.find(':') != std::string::npos ? "[" + address + "]" : address) + ":1";
}

Result<Identity> from_ivyrun(const EnvironmentLookup& environment) {
  Identity identity;
  identity.source = "ivyrun";
  identity.rank = IVY_TRY(number_of(environment, "IVY_RANK"));
  identity.world_size = IVY_TRY(number_of(environment, "IVY_WORLD_SIZE"));
  if (identity.world_size == 0 || identity.rank >= identity.world_size) {
    return Error{Code::kFailedPrecondition, "IVY_RANK is " + std::to_string(identity.rank) +
                                                " in a world of " +
                                                std::to_string(identity.world_size)};
  }
  identity.host_key = environment("IVY_NODE_RANK").value_or("");
  identity.spans_hosts = environment("IVY_NUM_NODES").value_or("1") != "1";
  identity.control_path = environment("IVY_CONTROL").value_or("");
  if (identity.world_size == 1) return identity;
  identity.meeting = Meeting::kStore;
  const std::optional<std::string> store = environment("IVY_STORE");
  if (!store) {
    return Error{Code::kFailedPrecondition, "this job has no store (IVY_STORE is not set)",
                 "start ivyrun without --no-store"};
  }
  identity.store_address = *store;
  // The store may be spoken to through this host's leaf, which says nothing of the way to others.
  const std::optional<std::string> first_host = environment("IVY_MASTER_ADDR");
  identity.first_host_address = first_host ? with_port(*first_host) : *store;
  identity.job_id = IVY_TRY(text_of(environment, "IVY_JOB_ID"));
  identity.token_file = IVY_TRY(text_of(environment, "IVY_TOKEN_FILE"));
  identity.generation =
      IVY_TRY(number_of("IVY_GENERATION", environment("IVY_GENERATION").value_or("0")));
  return identity;
}

Result<void> agree(std::string_view what, const std::optional<std::uint32_t>& said,
                   std::uint32_t found, const std::string& source) {
  if (!said || *said == found) return {};
  return Error{Code::kFailedPrecondition,
               "the program says " + std::string(what) + " " + std::to_string(*said) + ", " +
                   source + " says " + std::to_string(found),
               "leave it out of the program"};
}

}  // namespace

Result<Identity> identify(const IdentityRequest& request, const EnvironmentLookup& environment) {
  const bool wants_environment = request.init_method.empty() || request.init_method == "env://";
  if (!wants_environment && request.init_method != "self://") {
    return Error{Code::kInvalidArgument, "init method \"" + request.init_method + "\" is not known",
                 "use env:// (the default) or self://"};
  }
  Identity identity;
  if (wants_environment && environment("IVY_RANK")) identity = IVY_TRY(from_ivyrun(environment));
  if (identity.source == "nobody") identity.source = "a world of one";
  IVY_CHECK(agree("rank", request.rank, identity.rank, identity.source));
  IVY_CHECK(agree("world size", request.world_size, identity.world_size, identity.source));
  return identity;
}

}  // namespace ivy::comm
