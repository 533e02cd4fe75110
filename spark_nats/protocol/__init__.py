"""The NATS client protocol without a socket: wire bytes to Arrow columns and back.

Every rule of the protocol is stated here and nowhere else. Nothing here does I/O or knows Spark, so each part is
bytes in, values out.

=====================  ======================================================================
:mod:`.decoder`        chunks of bytes as ``recv`` returns them -> columns of messages
:mod:`.messages`       those columns, and the Arrow arrays they become
:mod:`.encoder`        Arrow columns -> PUB and HPUB for a whole batch
:mod:`.control`        the one-line operations, INFO and CONNECT, what an -ERR means
:mod:`.documents`      JSON that a server has sent
:mod:`.headers`        header blocks, one by one and as columns
:mod:`.subjects`       what a subject, a filter, a stream name may be
:mod:`.users`          what a server says about the user that is logged in
:mod:`.acks`           the subject that JetStream puts into a delivery's reply
:mod:`.bytecolumns`    the array arithmetic on bytes that the others are made of
=====================  ======================================================================
"""
