// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/job_facts.h"

#include <pmix_common.h>

namespace ivy {
namespace {

std::uint16_t narrow(std::uint32_t number) { return static_cast<std::uint16_t>(number); }

std::vector<Fact> facts_of_rank(const FactSource& source, std::uint32_t rank) {
  const JobLayout::RankLocation location = source.layout.locate(rank);
  return {
      // libpmix takes the first entry as the name of the others.
      {PMIX_RANK, RankNumber{rank}},
      {PMIX_APPNUM, std::uint32_t{0}},
      {PMIX_GLOBAL_RANK, RankNumber{rank}},
      {PMIX_APP_RANK, RankNumber{rank}},
      {PMIX_LOCAL_RANK, narrow(location.local_rank)},
      {PMIX_NODE_RANK, narrow(location.local_rank)},
      {PMIX_NODEID, location.host},
      {PMIX_HOSTNAME, source.layout.name(location.host)},
      {PMIX_REINCARNATION, source.generation},
  };
}

std::vector<Fact> sizes(const FactSource& source) {
  const std::uint32_t all = source.layout.ranks();
  const std::uint32_t here = source.layout.ranks_on(source.host);
  return {
      {PMIX_JOB_SIZE, all},
      {PMIX_UNIV_SIZE, all},
      {PMIX_MAX_PROCS, all},
      {PMIX_APP_SIZE, all},
      {PMIX_LOCAL_SIZE, here},
      {PMIX_NODE_SIZE, here},
      {PMIX_NUM_NODES, source.layout.hosts()},
      {PMIX_JOB_NUM_APPS, std::uint32_t{1}},
  };
}

}  // namespace

JobFacts job_facts(const FactSource& source) {
  const JobLayout& layout = source.layout;
  JobFacts facts;
  facts.job = sizes(source);
  const std::vector<Fact> others = {
      {PMIX_JOBID, source.job},
      {PMIX_SPAWNED, false},
      {PMIX_NODE_OVERSUBSCRIBED, source.is_oversubscribed},
      {PMIX_NODE_MAP, NodeMap{layout.node_list()}},
      {PMIX_PROC_MAP, RankMap{layout.rank_lists()}},
      {PMIX_ANL_MAP, layout.process_mapping()},
      {PMIX_LOCAL_PEERS, layout.local_peers(source.host)},
      {PMIX_LOCALLDR, RankNumber{layout.first_rank(source.host)}},
      {PMIX_TMPDIR, source.session_directory},
      {PMIX_NSDIR, source.session_directory},
      // Otherwise Open MPI 4.1 removes PMIX_TMPDIR with everything in it.
      {PMIX_TDIR_RMCLEAN, true},
  };
  facts.job.insert(facts.job.end(), others.begin(), others.end());
  for (std::uint32_t rank = 0; rank < layout.ranks(); ++rank)
    facts.ranks.push_back(facts_of_rank(source, rank));
  return facts;
}

}  // namespace ivy
