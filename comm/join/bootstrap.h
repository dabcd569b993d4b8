// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job without ivyrun find each other. Rank 0 starts a store (private_store.h)
// and publishes its address; the others find it and connect. By kind of bootstrap:
//
//   kAddress     the store listens at an address that all ranks know; there is no endpoint
//   kFile        it listens on all addresses of its host; the endpoint is in the file
//   kHostFile    it listens on 127.0.0.1; the endpoint is in a file of this host
//   kTorchStore  it listens on the address towards MASTER_ADDR; the endpoint is in torchrun's store
//
// An endpoint of an earlier run is harmless: it has its own token and job id, its store accepts no
// more clients once its rank 0 has exited, and rank 0 removes its file as soon as all ranks have
// joined. Without an endpoint (kAddress) the token is the content of IVY_TOKEN_FILE. Without that
// file there is no secret, so any process that reaches the port before the last rank can join. Rank
// 0 gives all ranks that have joined a job id and a token for their own connections.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/join/endpoint_file.h"
#include "comm/join/identity.h"
#include "comm/join/private_store.h"
#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::comm {

struct Bootstrapped {
  std::unique_ptr<PrivateStore> private_store;  // Null on all ranks but 0.
  std::unique_ptr<EndpointFile> endpoint_file;  // Rank 0's, if there is one.
  std::unique_ptr<store::Client> client;
  // job_id and token are random, known only to the ranks that have joined, and for their
  // connections.
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
  // Rank 0's address with a port: ranks listen on the interface towards it.
  std::string first_host_address;
};

// `generation` is the number of worlds that this process has had before, which is equal on all
// ranks. Fails with DeadlineExceeded, naming the step that rank 0 has not completed; with
// AlreadyExists if the port, the file or this rank is taken; and with Unauthenticated if something
// else listens there, or a store with another token.
Result<Bootstrapped> bootstrap(const Identity& identity, std::uint32_t generation,
                               std::chrono::milliseconds timeout);

}  // namespace ivy::comm
