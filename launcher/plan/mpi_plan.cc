// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/mpi_plan.h"

#include <set>
#include <string>
#include <string_view>

#include "proto/contract/mpi_library.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::string_view kSingletons = "use --allow-singletons if each worker should run alone";

std::string program_path(const PlanContext& context, const std::vector<std::string>& names) {
  return first_facts(context, names).program_path();
}

// Returns true for libraries of two families: "libmpi.so.40 libmpich.so.12".
bool has_two_families(const std::string& libraries) {
  std::set<MpiFamily> families;
  for (const std::string_view library : words_of(libraries)) {
    const MpiFamily family = mpi_family(library);
    if (family == MpiFamily::kMpich || family == MpiFamily::kOpenMpi) families.insert(family);
  }
  return families.size() > 1;
}

void reject_two(PlanContext& context, const std::string& libraries,
                const std::vector<std::string>& names) {
  context.reject(
      {.id = "IVY-P025",
       .what = context.plan.program + " is linked with two MPI libraries",
       .where = fold_host_names(names),
       .cause = program_path(context, names) + " needs " + libraries,
       .fix = "link it with the mpicc of one of them: ldd shows which library of it needs the "
              "other"});
}

// Rejects libraries that differ in family or major version, because they cannot form one world.
void reject_different(PlanContext& context, const HostsByText& groups) {
  std::string cause;
  for (const auto& [libraries, names] : groups)
    cause += (cause.empty() ? "" : "\n") + libraries + " on " + fold_host_names(names);
  std::vector<std::string> without;
  for (const PlannedHost& host : context.plan.hosts)
    if (context.facts(host).program_library().empty()) without.push_back(host.name);
  if (!without.empty()) cause += "\nno MPI library on " + fold_host_names(without);
  context.reject({.id = "IVY-P025",
                  .what = "the MPI of " + context.plan.program + " differs between hosts",
                  .cause = cause,
                  .fix = "build it with the same MPI everywhere, or use a shared directory"});
}

// Rejects an MPI library that neither server is known to serve; -B mpi tries both.
void reject_unknown(PlanContext& context, const std::string& libraries,
                    const std::vector<std::string>& names) {
  context.reject(
      {.id = "IVY-P024",
       .what = context.plan.program +
               " links an MPI library that ivyrun does not support: each of the " +
               std::to_string(context.plan.world_size) + " workers could be a world of one",
       .where = fold_host_names(names),
       .cause = program_path(context, names) + " links " + libraries,
       .fix = "use -B mpi if it supports PMI-1 or PMIx; otherwise start it with its own mpirun\n" +
              std::string(kSingletons)});
}

void reject_without_store(PlanContext& context) {
  context.reject(
      {.id = "IVY-P026",
       .what = "MPI across hosts needs the job's store",
       .cause = "--no-store disables it, and the MPI servers of the hosts exchange data through it",
       .fix = "leave out --no-store"});
}

void reject_to_lose_ranks(PlanContext& context) {
  context.reject(
      {.id = "IVY-P027",
       .what = "an MPI world cannot lose a rank",
       .cause = context.plan.program + " links MPI, but --on-failure lets single ranks exit",
       .fix = "leave out --on-failure; --max-restarts N restarts all ranks\n" +
              std::string(kSingletons)});
}

// If the program names no MPI library, both servers run, because a script may start any program.
void choose(PlanContext& context, MpiFamily family) {
  MpiChoice& choice = context.plan.mpi;
  const bool is_asked = context.options.profile == Profile::kMpi;
  const bool is_open = family != MpiFamily::kMpich && family != MpiFamily::kOpenMpi;
  if (!is_asked && family == MpiFamily::kNone) return;
  choice.pmi = is_open || family == MpiFamily::kMpich;
  choice.pmix = is_open || family == MpiFamily::kOpenMpi;
  choice.required = is_asked;
}

}  // namespace

void plan_mpi(PlanContext& context) {
  if (context.plan.world_size < 2 || context.options.allow_singletons) return;
  context.plan.mpi.served = true;
  const HostsByText groups =
      hosts_by_text(context, [](const HostFacts& facts) { return facts.program_library(); });
  std::size_t count = 0;
  for (const auto& [libraries, names] : groups) {
    if (has_two_families(libraries)) return reject_two(context, libraries, names);
    count += names.size();
  }
  if (groups.size() > 1 || (!groups.empty() && count < context.plan.hosts.size()))
    return reject_different(context, groups);
  const MpiFamily family = groups.empty() ? MpiFamily::kNone : mpi_family_of(groups.begin()->first);
  const bool is_asked = context.options.profile == Profile::kMpi;
  if (family == MpiFamily::kUnknown && !is_asked)
    return reject_unknown(context, groups.begin()->first, groups.begin()->second);
  choose(context, family);
  const bool is_mpi = context.plan.mpi.pmi || context.plan.mpi.pmix;
  if (is_mpi && context.options.on_failure != OnFailure::kRestart) reject_to_lose_ranks(context);
  if (is_mpi && context.plan.hosts.size() > 1 && context.options.no_store)
    reject_without_store(context);
}

}  // namespace ivy
