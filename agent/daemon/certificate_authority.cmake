# ivy_certificate_authority: the verbs that make certificates. Names no libcrypto, as ivy_certificate.
add_library(ivy_certificate_authority STATIC
  certificate_authority.cc certificate_index.cc certificate_issue.cc private_files.cc)
target_link_libraries(ivy_certificate_authority PUBLIC ivy_certificate ivy_agent_config)
target_include_directories(ivy_certificate_authority SYSTEM PRIVATE ${OPENSSL_INCLUDE_DIR})
