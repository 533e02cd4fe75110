# Spark and Jupyter with spark-nats from this checkout, for docker-compose.yml. The master, the workers and the driver use
# the same image, so they have the same Spark and the same Python. The images of Apache Spark 4.0 to 4.2 are no base for
# it: their Python is 3.10.
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY spark_nats spark_nats
COPY pyspark_nats pyspark_nats
RUN pip install --no-cache-dir ".[all]" jupyterlab matplotlib

RUN useradd --create-home spark
USER spark
WORKDIR /home/spark
COPY --chown=spark notebooks notebooks
